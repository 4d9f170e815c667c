"""Tars: a single one, one or many shards per split in a folder, or a pattern of shards (`birds-{000..009}.tar`).

Labels are class folders inside the tar or, as in WebDataset, files beside each image with the same name: a class in `7.cls`,
fields in `7.json`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.base import TRAIN_NAMES, VAL_NAMES, Images, ImageSource, find_train, find_val
from attngraft.tasks.images.sources.labels import read_labels
from attngraft.tasks.images.sources.listing import (
    Listing,
    by_class,
    class_source,
    common_folder,
    is_junk,
    natural,
    split_folders,
)
from attngraft.tasks.images.sources.table import LabelTable
from attngraft.tasks.images.sources.tar_images import TarImages, TarIndex, fields_of, index_tar

_BRACES = re.compile(r"\{([^{}]*)\}")
_LIMIT = 1_000_000  #: shards in a pattern


def is_pattern(source: str) -> bool:
    """Return whether a source is a pattern of shards."""
    return source.endswith(".tar") and _BRACES.search(source) is not None


def expanded(pattern: str) -> list[str]:
    """Expand `a-{00..02}.tar` to `a-00.tar`, `a-01.tar`, `a-02.tar`, and `{a,b}.tar` to `a.tar`, `b.tar`.

    Raises:
        DataError: other contents of braces; a decreasing range.
    """
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    inside, before, behind = match[1], pattern[: match.start()], pattern[match.end() :]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", inside)
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        if not first <= last < first + _LIMIT:
            raise DataError(f"{pattern}: {{{inside}}} must increase; write {{000..009}}")
        choices = [str(number).zfill(len(numbers[1])) for number in range(first, last + 1)]
    elif "," in inside:
        choices = inside.split(",")
    else:
        raise DataError(f"{pattern}: {{{inside}}} is not a pattern; write {{000..009}} or {{train,val}}")
    return [f"{before}{choice}{rest}" for choice in choices for rest in expanded(behind)]


def grouped(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Group paths by their names without a final number: `train-000.tar` and `birds-train-000.tar` belong to `train`,
    `birds-000.tar` to `birds`."""
    groups: dict[str, list[Path]] = {}
    for path in paths:
        name = re.sub(r"[-_.]?\d+$", "", path.stem)
        last = re.split(r"[-_.]", name)[-1]
        groups.setdefault(last if last.lower() in (*TRAIN_NAMES, *VAL_NAMES) else name, []).append(path)
    return groups


@dataclass(frozen=True)
class _Tars:
    """The tars of one split."""

    paths: Sequence[Path]
    indexes: Sequence[TarIndex]
    prefixed: bool = True  #: whether image names start with their tar's name

    @classmethod
    def opened(cls, paths: Sequence[Path], *, prefixed: bool = True) -> _Tars:
        tars = cls(paths, [index_tar(path) for path in paths], prefixed)
        for path, index in zip(paths, tars.indexes, strict=True):
            if not index.members:
                raise DataError(f"{path}: holds no images")
        return tars

    @property
    def name(self) -> str:
        first, last = self.paths[0].name, self.paths[-1].name
        return first if len(self.paths) == 1 else f"{first} to {last}"

    @property
    def labeled(self) -> bool:
        return any(index.texts for index in self.indexes)

    def by_names(self, names: Sequence[str], labels: np.ndarray) -> Images:
        """Return the images with these names."""
        row = {name: i for i, name in enumerate(self.names())}
        return self.by_rows(np.array([row[name] for name in names], dtype=np.int64), labels)

    def by_rows(self, rows: np.ndarray, labels: np.ndarray) -> TarImages:
        """Return the images at these positions among the images of all tars."""
        members = [member for index in self.indexes for member in index.members]
        tars = np.repeat(np.arange(len(self.paths)), [len(index.members) for index in self.indexes])
        offsets = [offset for index in self.indexes for offset in index.offsets]
        sizes = [size for index in self.indexes for size in index.sizes]
        places = np.stack([tars, np.array(offsets, dtype=np.int64), np.array(sizes, dtype=np.int64)], axis=1)
        return TarImages(
            self.paths,
            members=[members[row] for row in rows],
            places=places[rows],
            labels=labels,
            prefixed=self.prefixed,
        )

    def names(self, *, folders: bool = False) -> list[str]:
        return [
            f"{path.name}/{name}" if self.prefixed else name
            for path, index in zip(self.paths, self.indexes, strict=True)
            for name in (index.folders if folders else index.members)
        ]

    def by_class(self) -> dict[str, list[str]]:
        """Return names by class folder, below folders that hold everything."""
        members = tuple(member for index in self.indexes for member in index.members)
        folders = tuple(dict.fromkeys(folder for index in self.indexes for folder in index.folders))
        inside = common_folder(Listing("", members, folders))
        depth = (inside.count("/") + 1 if inside else 0) + self.prefixed
        return by_class(Listing("", tuple(self.names()), tuple(self.names(folders=True))), depth)


def open_tar(path: Path, config: DataConfig) -> ImageSource:
    """Open one tar, with folders inside or labels beside the images.

    Raises:
        DataError: not an uncompressed tar; see `listing.split_folders`; labels that cannot be identified.
    """
    index = index_tar(path)
    tars = _Tars([path], [index], prefixed=False)
    if tars.labeled:
        return _with_labels(tars, None, config, where=str(path), origin=path.name)
    listing = Listing(str(path), tuple(index.members), tuple(index.folders))
    return split_folders(listing, config, kind="tar", make=tars.by_names)


def tars_in(folder: Path) -> list[Path]:
    """Return the tars directly in `folder`."""
    tars = (entry for entry in folder.iterdir() if entry.suffix == ".tar" and not is_junk(entry.name))
    return sorted(tars, key=lambda entry: natural(entry.name))


def open_tar_folder(folder: Path, config: DataConfig) -> ImageSource:
    """Open the only tar in a folder, or tars named by split: `train.tar`, or `train-000.tar`, `train-001.tar`, ...

    Raises:
        DataError: no training or validation tar; as `open_tar`.
    """
    tars = tars_in(folder)
    if len(tars) == 1 and config.train_split is None and tars[0].stem.lower() not in TRAIN_NAMES:
        return open_tar(tars[0], config)
    return _open_groups(tars, config, where=str(folder))


def open_shards(pattern: str, config: DataConfig) -> ImageSource:
    """Open the tars of a pattern: `{000..009}` counts, `{train,val}` lists.

    Splits follow from names as in a folder; without such names all tars are one split.

    Raises:
        DataError: a missing tar; as `open_tar`.
    """
    paths = [Path(path).expanduser() for path in expanded(pattern)]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise DataError(
            f"{pattern}: {len(missing)} of {len(paths)} shards do not exist, the first is {missing[0]}; correct the pattern"
        )
    return _open_groups(paths, config, where=pattern)


def _open_groups(paths: Sequence[Path], config: DataConfig, *, where: str) -> ImageSource:
    groups = grouped(paths)
    train = find_train(list(groups), config, where=where)
    if train is None and len(groups) > 1:
        listed = ", ".join(path.name for path in paths[:8])
        raise DataError(f"{where}: no train.tar among {listed}; name the training tar with task.data.train_split")
    val = None if train is None else find_val(list(groups), config, train=train, where=where)
    first = _Tars.opened(groups[train] if train is not None else list(paths))
    second = None if val is None else _Tars.opened(groups[val])
    origin = first.name if second is None else f"{first.name} and {second.name}"
    if first.labeled:
        return _with_labels(first, second, config, where=where, origin=origin)
    return class_source(
        first.by_class(),
        None if second is None else second.by_class(),
        kind="tar",
        where=where,
        origin=origin,
        make=(first.by_names, (second or first).by_names),
    )


def _with_labels(train: _Tars, val: _Tars | None, config: DataConfig, *, where: str, origin: str) -> ImageSource:
    """Build a source whose labels lie beside the images."""
    parts = [train] if val is None else [train, val]
    names: list[int | str] = [name for tars in parts for name in tars.names()]
    columns: dict[str, list[Any]] = {}
    row = 0
    for path, index in [pair for tars in parts for pair in zip(tars.paths, tars.indexes, strict=True)]:
        for name, values in fields_of(index, path).items():
            columns.setdefault(name, [None] * len(names))[row : row + len(values)] = values
        row += len(index.members)
    labels = read_labels(LabelTable(where=where, columns=columns, numbers=names), config, exclude=set())
    count = sum(len(index.members) for index in train.indexes)
    rows = np.arange(len(names))
    return ImageSource(
        kind="webdataset",
        where=where,
        classes=labels.classes,
        train=train.by_rows(rows[:count], labels.values[:count]),
        val=None if val is None else val.by_rows(rows[count:] - count, labels.values[count:]),
        origin=origin,
        multilabel=labels.multilabel,
        notes=(labels.note,) if labels.note else (),
    )
