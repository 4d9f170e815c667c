"""Tables of paths and labels: .csv, .tsv, .parquet, or one of them for each part in a folder.

A column of paths, and one of labels: one label for each image, or a list (`cat dog`, `cat,dog`, `cat;dog`, `cat|dog`,
`["cat", "dog"]`), or a column of 0 and 1 for each class. Optionally a column that says which part an image belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.folder import USUAL_FOLDERS, FolderImages
from attngraft.tasks.images.sources.labels import read_labels
from attngraft.tasks.images.sources.parts import TRAIN_NAMES, VAL_NAMES, Parts, find_name, missing_validation
from attngraft.tasks.images.sources.table import KINDS, MISSING, Table, read_table

PATH_NAMES = (
    *("path", "file", "filename", "file_name", "filepath", "file_path", "image", "images", "image_path", "img"),
    *("img_path", "image_name", "image_file", "image_id", "name"),
)
SPLIT_NAMES = ("split", "part", "subset", "partition", "set", "fold")
#: of a table that is alone in a folder
TABLE_NAMES = ("metadata", "labels", "annotations", "manifest", "dataset", "data")

_ENDINGS = (".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG", ".webp", ".tif")  #: that a column of ids lacks
_PROBED = 20  #: paths that are looked for to find where relative paths begin


def open_manifest(path: Path, config: DataConfig) -> Parts:
    """The images that the table at `path` names.

    Raises:
        DataError: not readable as a table; no column of paths or labels that can be told; labels missing.
        ConfigError: a column that is not there.
    """
    table = read_table(path)
    return _divided(table, path.parent, config)


def open_manifests(folder: Path, config: DataConfig) -> Parts:
    """`train.csv` beside `val.csv` (or .tsv, .parquet), or a table that is alone (`metadata.csv`, `labels.csv`, ...).

    Raises:
        DataError: as `open_manifest`; no validation table.
    """
    there = _tables(folder)
    train = find_name(list(there), config.train_split, TRAIN_NAMES, field="train_split", where=str(folder))
    if train is None:
        return open_manifest(_single(there), config)
    named = config.val_split or not config.draws
    val = find_name(list(there), config.val_split, VAL_NAMES, field="val_split", where=str(folder)) if named else None
    if val is None:
        if named:
            raise missing_validation(str(folder), train, list(there))
        return _whole(read_table(there[train]), folder, config, f"{there[train].name}")
    one, other = read_table(there[train]), read_table(there[val])
    missing = [name for name in one.columns if name not in other.columns]
    if missing:
        raise DataError(
            f"{there[val]}: has no column {missing[0]!r}, which {there[train].name} has; where it is no validation part, "
            "draw one with task.data.val_fraction=0.2"
        )
    both = Table(
        where=str(folder),
        columns={name: one.columns[name] + other.columns[name] for name in one.columns},
        numbers=one.numbers + other.numbers,
    )
    side = np.array([0] * len(one) + [1] * len(other))
    return _parts(both, folder, config, side, f"{there[train].name} and {there[val].name}")


def manifests_in(folder: Path) -> bool:
    """Whether tables lie in `folder` that `open_manifests` reads."""
    there = _tables(folder)
    lowered = {name.lower() for name in there}
    return any(name in lowered for name in (*TRAIN_NAMES, *TABLE_NAMES))


def _tables(folder: Path) -> dict[str, Path]:
    found = sorted(entry for entry in folder.iterdir() if entry.suffix.lower() in KINDS and entry.name[0] != ".")
    return {entry.stem: entry for entry in reversed(found)}


def _single(there: dict[str, Path]) -> Path:
    lowered = {name.lower(): path for name, path in there.items()}
    return next(lowered[name] for name in TABLE_NAMES if name in lowered)


def _divided(table: Table, folder: Path, config: DataConfig) -> Parts:
    """By the column that names each image's part, where there is one."""
    name = config.split_column or _told(table, SPLIT_NAMES)
    if name is None:
        return _whole(table, folder, config, f"the rows of {Path(table.where).name}")
    entries = ["" if entry is None else str(entry) for entry in table.column(name, field="split_column")]
    there = sorted({entry for entry in entries if entry.lower() not in MISSING})
    where = f"{table.where} (column {name!r})"
    train = find_name(there, config.train_split, TRAIN_NAMES, field="train_split", where=where)
    if train is None:
        if config.split_column is None and config.val_split is None:
            return _whole(table, folder, config, f"the rows of {Path(table.where).name}")
        raise DataError(
            f"{where}: no row says train; name the training part with task.data.train_split; there is: {there}"
        )
    named = config.val_split or not config.draws
    val = find_name(there, config.val_split, VAL_NAMES, field="val_split", where=where) if named else None
    if named and val is None:
        raise missing_validation(where, train, there)
    side = np.array([0 if entry == train else 1 if entry == val else -1 for entry in entries])
    origin = f"the rows of column {name!r} that say {train}" + (f" and {val}" if val else "")
    parts = _parts(table, folder, config, side, origin)
    others = int((side < 0).sum())
    if others:
        rows, verb = ("row", "is") if others == 1 else ("rows", "are")
        note = f"{others} {rows} whose column {name!r} says something else {verb} not used."
        parts = replace(parts, notes=(*parts.notes, note))
    return parts


def _whole(table: Table, folder: Path, config: DataConfig, origin: str) -> Parts:
    return _parts(table, folder, config, np.zeros(len(table), dtype=np.int64), origin)


def _parts(table: Table, folder: Path, config: DataConfig, side: np.ndarray, origin: str) -> Parts:
    """Parts from a table whose rows belong to the training part (0), the validation part (1), or none (-1)."""
    column = config.path_column or _told(table, PATH_NAMES)
    if column is None:
        listed = ", ".join(table.columns)
        raise DataError(
            f"{table.where}: which column holds the paths? none is called {', '.join(PATH_NAMES[:4])}; name it with "
            f"task.data.path_column; there are: {listed}"
        )
    paths = _paths(table, table.column(column, field="path_column"), column)
    labels = read_labels(table, config, but={column, config.split_column or _told(table, SPLIT_NAMES) or ""})
    root, ending = _root(folder, paths, config)
    paths = [f"{path}{ending}" for path in paths] if ending else paths
    notes = [labels.note] if labels.note else []
    if root != folder and config.root is None:
        notes.append(f"Paths begin in {root.name}/ beside the table.")
    if ending:
        notes.append(f"Paths are taken to end in {ending}.")

    def images(which: int) -> FolderImages:
        rows = np.flatnonzero(side == which)
        return FolderImages(root, names=[paths[row] for row in rows], labels=labels.of(rows))

    return Parts(
        kind="table",
        where=table.where,
        classes=labels.classes,
        train=images(0),
        val=images(1) if (side == 1).any() else None,
        origin=origin,
        multilabel=labels.multilabel,
        notes=tuple(notes),
    )


def _paths(table: Table, entries: Sequence[Any], column: str) -> list[str]:
    paths = []
    for row, entry in enumerate(entries):
        if not isinstance(entry, str) or not entry or "\0" in entry:
            what = "nothing" if entry in (None, "") else f"{type(entry).__name__}, not a path"
            raise DataError(f"{table.line(row)}: column {column!r} holds {what}; task.data.path_column names another")
        if entry.startswith(("http://", "https://", "s3://", "gs://")):
            raise DataError(f"{table.line(row)}: {entry} is an address; download the images and give paths")
        paths.append(entry.replace("\\", "/"))
    return paths


def _root(folder: Path, paths: Sequence[str], config: DataConfig) -> tuple[Path, str]:
    """Where relative paths begin: as the user says, beside the table, or in the folder beside it where the first are. And
    what all of them lack at their end (`7` for `7.jpg`)."""
    probed = paths[:_PROBED]
    if config.root is not None:
        root = Path(config.root).expanduser()
        if not root.is_dir():
            raise DataError(f"task.data.root: there is no folder {root}")
        places = [root]
    else:
        places = [folder, *(folder / name for name in USUAL_FOLDERS)]
    for ending in ("", *_ENDINGS):
        for place in places:
            if any((place / f"{path}{ending}").is_file() for path in probed):
                return place, ending
    if config.root is not None:
        return places[0], ""
    raise DataError(
        f"{folder}: none of the first {len(probed)} images of the table is there ({probed[0]}, ...); say where relative "
        "paths begin with task.data.root"
    )


def _told(table: Table, names: Sequence[str]) -> str | None:
    """The column with the first of these names, in any case."""
    lowered = {name.lower().replace(" ", "_"): name for name in reversed(table.columns)}
    return next((lowered[name] for name in names if name in lowered), None)
