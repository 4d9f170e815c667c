"""Tables of paths and labels: a .csv, .tsv or .parquet file, or a folder with one table per split.

A table has a column of paths and a column of labels, with a single label or a list of labels per image (`cat dog`,
`cat,dog`, `cat;dog`, `cat|dog`, `["cat", "dog"]`), or a 0/1 column per class. An optional column names each image's split.
"""

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.base import (
    TRAIN_NAMES,
    ImageSource,
    configured_root,
    find_test,
    find_train,
    find_val,
)
from attngraft.tasks.images.sources.folder import USUAL_FOLDERS, FolderImages
from attngraft.tasks.images.sources.listing import is_image
from attngraft.tasks.images.sources.table import (
    KINDS,
    MISSING,
    LabelTable,
    find_column,
    read_labels,
    read_numbers,
    read_table,
)

PATH_NAMES = (
    *("path", "file", "filename", "file_name", "filepath", "file_path", "image", "images", "image_path", "img"),
    *("img_path", "image_name", "image_file", "image_id", "name", "id", "id_code", "img_id", "file_id"),
)
SPLIT_NAMES = ("split", "part", "subset", "partition", "set", "fold")
#: usual names of a single table in a folder
TABLE_NAMES = ("metadata", "labels", "annotations", "manifest", "dataset", "data")

_PROBED = 20  #: number of paths to try when searching for the base folder


def open_manifest(path: Path, config: DataConfig) -> ImageSource:
    """Open the images listed in the table at `path`.

    Raises:
        DataError: the file cannot be read as a table, it has no column of paths or of labels, or labels are missing.
        ConfigError: a column is unknown.
    """
    return _by_split_column(read_table(path), path.parent, config)


def open_manifests(folder: Path, config: DataConfig) -> ImageSource:
    """Open `train.csv` and `val.csv` (or .tsv, .parquet) in a folder, or its only table (`metadata.csv`, ...).

    Raises:
        DataError: there is no validation table; see also `open_manifest`.
    """
    tables = tables_in(folder)
    train = find_train(list(tables), config, where=str(folder))
    if train is None:
        lowered = {name.lower(): path for name, path in tables.items()}
        return open_manifest(next(lowered[name] for name in TABLE_NAMES if name in lowered), config)
    val = find_val(list(tables), config, train=train, where=str(folder))
    test = find_test(list(tables), config, used=(train, val), where=str(folder))
    if val is None:
        source = _all_train(read_table(tables[train]), folder, config, f"{tables[train].name}")
        return replace(source, test_split=test)
    first, second = read_table(tables[train]), read_table(tables[val])
    missing = [name for name in first.columns if name not in second.columns]
    if missing:
        raise DataError(
            f"{tables[val]}: has no column {missing[0]!r}, which {tables[train].name} has; if it is not a validation split, "
            "take a random one with --set task.data.val_fraction=0.2"
        )
    both = LabelTable(
        where=str(folder),
        columns={name: first.columns[name] + second.columns[name] for name in first.columns},
        numbers=first.numbers + second.numbers,
    )
    side = np.array([0] * len(first) + [1] * len(second))
    source = _build(both, folder, config, side, f"{tables[train].name} and {tables[val].name}")
    return replace(source, test_split=test)


def manifests_in(folder: Path) -> bool:
    """Return whether `folder` contains tables that `open_manifests` can read."""
    lowered = {name.lower() for name in tables_in(folder)}
    return any(name in lowered for name in (*TRAIN_NAMES, *TABLE_NAMES))


def tables_in(folder: Path) -> dict[str, Path]:
    """Return the tables directly in a folder, by their names without extension."""
    files = sorted(entry for entry in folder.iterdir() if entry.suffix.lower() in KINDS and entry.name[0] != ".")
    return {entry.stem: entry for entry in reversed(files)}


def _by_split_column(table: LabelTable, folder: Path, config: DataConfig) -> ImageSource:
    """Split by the column that names each image's split, if there is one."""
    all_rows = f"the rows of {Path(table.where).name}"
    name = config.split_column or find_column(table, SPLIT_NAMES)
    if name is None:
        return _all_train(table, folder, config, all_rows)
    entries = ["" if entry is None else str(entry) for entry in table.column(name, field="split_column")]
    values = sorted({entry for entry in entries if entry.lower() not in MISSING})
    where = f"{table.where} (column {name!r})"
    train = find_train(values, config, where=where)
    if train is None:
        if config.split_column is None and config.val_split is None:
            return _all_train(table, folder, config, all_rows)
        raise DataError(
            f"{where}: no training rows; name the training split with --set task.data.train_split=NAME; available: {values}"
        )
    val = find_val(values, config, train=train, where=where)
    side = np.array([0 if entry == train else 1 if entry == val else -1 for entry in entries])
    origin = f"the rows with {name!r} {train}" + (f" and {val}" if val else "")
    test = find_test(values, config, used=(train, val), where=where)
    source = replace(_build(table, folder, config, side, origin), test_split=test)
    others = sum(part < 0 and entry != test for part, entry in zip(side, entries, strict=True))
    if others:
        rows, verb = ("row", "is") if others == 1 else ("rows", "are")
        note = f"{others} {rows} with other values in column {name!r} {verb} not used."
        source = replace(source, notes=(*source.notes, note))
    return source


def _all_train(table: LabelTable, folder: Path, config: DataConfig, origin: str) -> ImageSource:
    return _build(table, folder, config, np.zeros(len(table), dtype=np.int64), origin)


def _build(table: LabelTable, folder: Path, config: DataConfig, side: np.ndarray, origin: str) -> ImageSource:
    """Build a source from a table; `side` is 0 for training, 1 for validation and -1 for unused rows."""
    column = config.path_column or find_column(table, PATH_NAMES)
    if column is None:
        raise DataError(
            f"{table.where}: cannot find the column of paths (looked for {', '.join(PATH_NAMES[:4])}, ...); name it with "
            f"--set task.data.path_column=NAME; available: {', '.join(table.columns)}"
        )
    paths = _paths(table, table.column(column, field="path_column"), column)
    split_column = config.split_column or find_column(table, SPLIT_NAMES) or ""
    labels = (read_numbers if config.numeric else read_labels)(table, config, exclude={column, split_column})
    root = find_root(folder, paths, config)
    paths, extensions = _with_extensions(table, root, paths, side, column)
    notes = [labels.note] if labels.note else []
    if root != folder and config.root is None:
        notes.append(f"Paths are relative to {root.name}/, next to the table.")
    if extensions:
        notes.append(f"{' or '.join(extensions)} is added to the paths.")

    def images(which: int) -> FolderImages:
        rows = np.flatnonzero(side == which)
        return FolderImages(root, names=[paths[row] for row in rows], labels=labels.values[rows])

    return ImageSource(
        kind="table",
        where=table.where,
        classes=labels.classes,
        train=images(0),
        val=images(1) if (side == 1).any() else None,
        origin=origin,
        multilabel=labels.multilabel,
        numeric=config.numeric,
        notes=tuple(notes),
    )


def _paths(table: LabelTable, entries: Sequence[Any], column: str) -> list[str]:
    paths = []
    for row, entry in enumerate(entries):
        path = str(entry) if isinstance(entry, int) else entry  # an id in a .parquet file
        if not isinstance(path, str) or not path or "\0" in path:
            what = "nothing" if entry in (None, "") else f"{type(entry).__name__}, not a path"
            raise DataError(
                f"{table.line(row)}: column {column!r} contains {what}; name the column of paths with --set "
                "task.data.path_column=NAME"
            )
        if path.startswith(("http://", "https://", "s3://", "gs://")):
            raise DataError(f"{table.line(row)}: {path} is a URL; download the images and use their paths")
        paths.append(path.replace("\\", "/"))
    return paths


class _ImagesByStem:
    """Image files below a folder, found by their paths without the extension; each subfolder is listed once."""

    def __init__(self, root: Path) -> None:
        self.root, self.folders = root, dict[str, dict[str, list[str]]]()

    def find(self, path: str) -> list[str]:
        """Return the files named `path`, or else the images `path.*`, relative to the root."""
        name = path.rpartition("/")[2]
        inside = path.removesuffix(name)
        if inside not in self.folders:
            self.folders[inside] = self._list(inside)
        return [f"{inside}{file}" for file in self.folders[inside].get(name, [])]

    def _list(self, inside: str) -> dict[str, list[str]]:
        try:
            files = sorted(entry.name for entry in os.scandir(self.root / inside))
        except OSError:
            return {}
        by_stem: dict[str, list[str]] = {}
        for file in files:
            if is_image(file):
                by_stem.setdefault(file.rpartition(".")[0], []).append(file)
        return by_stem | {file: [file] for file in files}


def find_root(folder: Path, paths: Sequence[str], config: DataConfig) -> Path:
    """Return the base folder of relative paths; the paths may lack their extension.

    It is `task.data.root`, the table's folder, or a subfolder that contains the first images.
    """
    probed = paths[:_PROBED]
    root = configured_root(config)
    if root is not None:
        return root
    bases = [folder, *(folder / name for name in USUAL_FOLDERS)]
    exact = (base for base in bases if any((base / path).is_file() for path in probed))
    by_stem = (base for base in bases if any(map(_ImagesByStem(base).find, probed)))
    found = next(itertools.chain(exact, by_stem), None)
    if found is None:
        raise DataError(
            f"{folder}: none of the first {len(probed)} images of the table exists ({probed[0]}, ...); give the base "
            "folder of relative paths with --set task.data.root=FOLDER"
        )
    return found


def _with_extensions(
    table: LabelTable, root: Path, paths: Sequence[str], side: np.ndarray, column: str
) -> tuple[list[str], list[str]]:
    """Return the paths with the extensions of their files (`7.jpg` for `7`), and the extensions that were added.

    Paths of missing files remain as they are.
    """
    images, complete, extensions = _ImagesByStem(root), list(paths), set[str]()
    for row in np.flatnonzero(side >= 0).tolist():
        path = paths[row]
        found = [path] if is_image(path) else images.find(path)
        if len(found) > 1:
            raise DataError(
                f"{table.line(row)}: {path} may be {' or '.join(found)} in {root}; add the extensions to column {column!r}, "
                "or remove the other files"
            )
        if found and found[0] != path:
            complete[row] = found[0]
            extensions.add(found[0].removeprefix(path))
    return complete, sorted(extensions)
