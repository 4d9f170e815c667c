"""Tables of paths and labels: a .csv, .tsv or .parquet file, or a folder with one table per split.

A table has a column of paths and a column of labels, with a single label or a list of labels per image (`cat dog`,
`cat,dog`, `cat;dog`, `cat|dog`, `["cat", "dog"]`), or a 0/1 column per class. An optional column names each image's split.
"""

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import DataError
from attngraft.suggest import cut, repeated
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.base import (
    TRAIN_NAMES,
    VAL_NAMES,
    ImageSource,
    configured_root,
    find_splits,
)
from attngraft.tasks.images.sources.folder import USUAL_FOLDERS, FolderImages
from attngraft.tasks.images.sources.listing import is_image
from attngraft.tasks.images.sources.table import (
    KINDS,
    MISSING,
    LabelTable,
    find_column,
    read_groups,
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


@dataclass(frozen=True, kw_only=True)
class SplitTable:
    """The rows of all splits, and the split of each row."""

    table: LabelTable
    side: np.ndarray  #: 0: training, 1: validation, 2: test, -1: none of them
    origin: str  #: description of the splits
    test_split: str | None = None  #: name of the test split; its rows are in `table` only if a column names splits

    def used(self) -> "SplitTable":
        """Return the rows of training and validation only."""
        rows = np.flatnonzero((self.side == 0) | (self.side == 1))
        return replace(self, table=self.table.take(rows), side=self.side[rows])


def open_manifest(path: Path, config: DataConfig) -> ImageSource:
    """Open the images listed in a table, or in the tables of a folder.

    Raises:
        DataError: see `read_splits`; or there is no column of paths or of labels, or labels are missing.
        ConfigError: a column is unknown.
    """
    found = read_splits(path, config)
    source = replace(_build(found, path if path.is_dir() else path.parent, config), test_split=found.test_split)
    others = int((found.side == -1).sum())
    if others:
        rows, verb = ("row", "is") if others == 1 else ("rows", "are")
        note = f"{others} {rows} with other values in column {_split_column(found.table, config)!r} {verb} not used."
        source = replace(source, notes=(*source.notes, note))
    return source


def read_splits(
    path: Path, config: DataConfig, *, tables: Mapping[str, Callable[[], LabelTable]] | None = None
) -> SplitTable:
    """Read a table, split by the column that names each row's split, if there is one.

    In a folder, read `train.csv` and `val.csv` (or .tsv, .jsonl, .parquet), or its only table (`metadata.csv`, ...).
    `tables` are functions that read the tables of other files, by their splits or names.

    Raises:
        DataError: a file cannot be read as a table, or there is no such split.
        ConfigError: a column is unknown.
    """
    if tables is None and not path.is_dir():
        return _by_split_column(read_table(path), config)
    tables = {name: partial(read_table, file) for name, file in tables_in(path).items()} if tables is None else tables
    train, val, test = find_splits(list(tables), config, where=str(path))
    if train is None:
        lowered = {name.lower(): file for name, file in tables.items()}
        usual = [lowered[name] for name in TABLE_NAMES if name in lowered]
        if not usual and len(tables) != 1:
            raise DataError(
                f"{path}: no train.csv, train.tsv or train.parquet; rename the training table to one of these, or give a "
                "single table"
            )
        return _by_split_column([*usual, *tables.values()][0](), config)
    table = tables[train]()
    origin = Path(table.where).name
    side = np.zeros(len(table), dtype=np.int64)
    if val is not None:
        other = tables[val]()
        table, origin = _together(table, other, path), f"{origin} and {Path(other.where).name}"
        side = np.concatenate([side, np.ones(len(other), dtype=np.int64)])
    return SplitTable(table=table, side=side, origin=origin, test_split=test)


def _together(train: LabelTable, val: LabelTable, folder: Path) -> LabelTable:
    names = [Path(table.where).name for table in (train, val)]
    missing = [name for name in train.columns if name not in val.columns]
    if missing:
        raise DataError(
            f"{val.where}: has no column {missing[0]!r}, which {names[0]} has; add it, or, if this is not a validation "
            "split, take a random one with --set task.data.val_fraction=0.2"
        )
    return LabelTable(
        where=str(folder),
        columns={name: entries + val.columns[name] for name, entries in train.columns.items()},
        numbers=[
            f"{name}, {f'row {row}' if isinstance(row, int) else row}"
            for name, table in zip(names, (train, val), strict=True)
            for row in table.numbers
        ],
        note=" ".join(filter(None, (train.note, val.note))),
    )


def manifests_in(folder: Path) -> bool:
    """Return whether `folder` contains tables that `open_manifest` can read."""
    lowered = {name.lower() for name in tables_in(folder)}
    return any(name in lowered for name in (*TRAIN_NAMES, *TABLE_NAMES))


def tables_in(folder: Path) -> dict[str, Path]:
    """Return the tables directly in a folder, by their names without extension.

    Raises:
        DataError: two of them have a usual name.
    """
    files = sorted(entry for entry in folder.iterdir() if entry.suffix.lower() in KINDS and entry.name[0] != ".")
    usual = (*TRAIN_NAMES, *VAL_NAMES, *TABLE_NAMES)
    if twice := repeated(entry.stem for entry in files if entry.stem.lower() in usual):
        names = " and ".join(entry.name for entry in files if entry.stem == twice)
        raise DataError(f"{folder}: has {names}; remove one, or give a file")
    return {entry.stem: entry for entry in files}


def _split_column(table: LabelTable, config: DataConfig) -> str | None:
    return config.split_column or find_column(table, SPLIT_NAMES)


def _by_split_column(table: LabelTable, config: DataConfig) -> SplitTable:
    name = _split_column(table, config)
    entries = [] if name is None else table.column(name, field="split_column")
    entries = ["" if entry is None else str(entry) for entry in entries]
    values = sorted({entry for entry in entries if entry.lower() not in MISSING})
    where = f"{table.where} (column {name!r})"
    train, val, test = find_splits(values, config, where=where) if name is not None else (None, None, None)
    if train is None:
        named = config.val_split or config.train_split
        if config.split_column is not None or (name is not None and named):
            raise DataError(
                f"{where}: no training rows; name the training split with --set task.data.train_split=NAME; available: "
                f"{', '.join(values)}"
            )
        if named:
            raise DataError(
                f"{table.where}: no split {named!r}, because no column names splits; name one with --set "
                "task.data.split_column=NAME"
            )
        side = np.zeros(len(table), dtype=np.int64)
        return SplitTable(table=table, side=side, origin=f"the rows of {Path(table.where).name}")
    sides = {split: side for side, split in enumerate((train, val, test)) if split is not None}
    return SplitTable(
        table=table,
        side=np.array([sides.get(entry, -1) for entry in entries]),
        origin=f"the rows with {name!r} {train}" + (f" and {val}" if val else ""),
        test_split=test,
    )


def _build(found: SplitTable, folder: Path, config: DataConfig) -> ImageSource:
    table, column = found.table, config.path_column or find_column(found.table, PATH_NAMES)
    if column is None:
        raise DataError(
            f"{table.where}: cannot find the column of paths (looked for {', '.join(PATH_NAMES[:4])}, ...); name it with "
            f"--set task.data.path_column=NAME; available: {', '.join(table.columns)}"
        )
    exclude, used = {column, _split_column(table, config) or "", config.group_column or ""}, found.used()
    labels = (read_numbers if config.numeric else read_labels)(used.table, config, exclude=exclude)
    if labels.multilabel and len(used.table) < len(table):  # classes are those of all rows
        labels = read_labels(table, config, exclude=exclude)
    else:
        found, table = used, used.table
    paths = _paths(table, table.column(column, field="path_column"), column)
    root = find_root(folder, paths, config)
    paths, extensions = _with_extensions(table, root, paths, found.side, column)
    notes = list(filter(None, (table.note, labels.note)))
    if root != folder and config.root is None:
        notes.append(f"Paths are relative to {root.name}/, next to the table.")
    if extensions:
        notes.append(f"{' or '.join(extensions)} is added to the paths.")

    def images(which: int) -> FolderImages:
        rows = np.flatnonzero(found.side == which)
        return FolderImages(root, names=[paths[row] for row in rows.tolist()], labels=labels.values[rows])

    groups = None
    if config.group_column is not None:
        groups = dict(zip(paths, read_groups(table, config.group_column), strict=True))
    return ImageSource(
        kind="table",
        where=table.where,
        classes=labels.classes,
        groups=groups,
        train=images(0),
        val=images(1) if (found.side == 1).any() else None,
        origin=found.origin,
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
    # os.path.isfile is False for names that are too long
    exact = (base for base in bases if any(os.path.isfile(base / path) for path in probed))
    by_stem = (base for base in bases if any(map(_ImagesByStem(base).find, probed)))
    found = next(itertools.chain(exact, by_stem), None)
    if found is None:
        raise DataError(
            f"{folder}: none of the first {len(probed)} images of the table exists ({cut(probed[0])}, ...); give the base "
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
    for row in np.flatnonzero((side == 0) | (side == 1)).tolist():
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
