"""Tars: one alone, one or many shards for each part in a folder, or shards by a pattern (`birds-{000..009}.tar`).

Labels are the folders inside, or, as in WebDataset, lie beside each image under the same name: a class in `7.cls`, fields
in `7.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.images import Images
from attngraft.tasks.images.sources.labels import read_labels
from attngraft.tasks.images.sources.listing import Listing, by_class, divide, is_junk, natural, together, wrapper
from attngraft.tasks.images.sources.parts import TRAIN_NAMES, VAL_NAMES, Parts, find_name, missing_validation
from attngraft.tasks.images.sources.shard_names import expanded, grouped
from attngraft.tasks.images.sources.table import Table
from attngraft.tasks.images.sources.tar_images import TarImages
from attngraft.tasks.images.sources.tar_index import TarIndex, fields_of, index_tar


@dataclass(frozen=True)
class _Tars:
    """The tars of one part."""

    paths: Sequence[Path]
    indexes: Sequence[TarIndex]
    prefixed: bool = True  #: whether images' names begin with their tar's

    @classmethod
    def opened(cls, paths: Sequence[Path], *, prefixed: bool = True) -> _Tars:
        found = cls(paths, [index_tar(path) for path in paths], prefixed)
        for path, index in zip(paths, found.indexes, strict=True):
            if not index.members:
                raise DataError(f"{path}: holds no images")
        return found

    @property
    def name(self) -> str:
        first, last = self.paths[0].name, self.paths[-1].name
        return first if len(self.paths) == 1 else f"{first} to {last}"

    @property
    def labelled(self) -> bool:
        return any(index.texts for index in self.indexes)

    def make(self, names: Sequence[str], labels: np.ndarray) -> Images:
        """The images of these names."""
        place = {name: i for i, name in enumerate(self.names())}
        return self.images(np.array([place[name] for name in names], dtype=np.int64), labels)

    def images(self, rows: np.ndarray, labels: np.ndarray) -> TarImages:
        """The images at these places of all that lie in the tars, one behind the other."""
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
        """Names by the class folder that they lie in, below folders that hold everything."""
        members = tuple(member for index in self.indexes for member in index.members)
        folders = tuple(dict.fromkeys(folder for index in self.indexes for folder in index.folders))
        inside = wrapper(Listing("", members, folders))
        depth = (inside.count("/") + 1 if inside else 0) + self.prefixed
        return by_class(Listing("", tuple(self.names()), tuple(self.names(folders=True))), depth)

    def fields(self) -> dict[str, list[Any]]:
        """The columns of labels that lie beside the images."""
        columns: dict[str, list[Any]] = {}
        done = 0
        for path, index in zip(self.paths, self.indexes, strict=True):
            for name, values in fields_of(index, path).items():
                column = columns.setdefault(name, [])
                column += [None] * (done - len(column)) + values
            done += len(index.members)
        return {name: column + [None] * (done - len(column)) for name, column in columns.items()}


def open_tar(path: Path, config: DataConfig) -> Parts:
    """One tar: inside like a folder, or with labels beside the images.

    Raises:
        DataError: not an uncompressed tar; see `listing.divide`; labels that cannot be told.
    """
    index = index_tar(path)
    tars = _Tars([path], [index], prefixed=False)
    if tars.labelled:
        return _labelled(tars, None, config, where=str(path), origin=path.name)
    listing = Listing(str(path), tuple(index.members), tuple(index.folders))
    return divide(listing, config, kind="tar", make=tars.make)


def tars_in(folder: Path) -> list[Path]:
    """The tars that lie directly in `folder`."""
    there = (entry for entry in folder.iterdir() if entry.suffix == ".tar" and not is_junk(entry.name))
    return sorted(there, key=lambda entry: natural(entry.name))


def open_tar_folder(folder: Path, config: DataConfig) -> Parts:
    """A single tar in a folder, or tars whose names tell their parts: `train.tar`, or `train-000.tar`, `train-001.tar`, ...

    Raises:
        DataError: no training or validation tar; as `open_tar`.
    """
    there = tars_in(folder)
    if len(there) == 1 and config.train_split is None and there[0].stem.lower() not in TRAIN_NAMES:
        return open_tar(there[0], config)
    return _grouped(there, config, where=str(folder))


def open_shards(pattern: str, config: DataConfig) -> Parts:
    """The tars of a pattern: `{000..009}` counts, `{train,val}` chooses. Their names tell parts as in a folder; where they
    tell none, all are one part.

    Raises:
        DataError: a tar that is not there; as `open_tar`.
    """
    paths = [Path(path).expanduser() for path in expanded(pattern)]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise DataError(
            f"{pattern}: {len(missing)} of {len(paths)} shards are not there, the first is {missing[0]}; correct the pattern"
        )
    return _grouped(paths, config, where=pattern)


def _grouped(paths: Sequence[Path], config: DataConfig, *, where: str) -> Parts:
    groups = grouped(paths)
    train = find_name(list(groups), config.train_split, TRAIN_NAMES, field="train_split", where=where)
    val = None
    if train is None and len(groups) > 1:
        listed = ", ".join(path.name for path in paths[:8])
        raise DataError(f"{where}: no train.tar among {listed}; name the training tar with task.data.train_split")
    if train is not None and (config.val_split or not config.draws):
        val = find_name(list(groups), config.val_split, VAL_NAMES, field="val_split", where=where)
        if val is None:
            raise missing_validation(where, train, list(groups))
    first = _Tars.opened(groups[train] if train is not None else list(paths))
    second = None if val is None else _Tars.opened(groups[val])
    origin = first.name if second is None else f"{first.name} and {second.name}"
    if first.labelled:
        return _labelled(first, second, config, where=where, origin=origin)
    return together(
        first.by_class(),
        None if second is None else second.by_class(),
        kind="tar",
        where=where,
        origin=origin,
        make=(first.make, (second or first).make),
    )


def _labelled(train: _Tars, val: _Tars | None, config: DataConfig, *, where: str, origin: str) -> Parts:
    """Parts whose labels lie beside the images."""
    parts = [train] if val is None else [train, val]
    columns: dict[str, list[Any]] = {}
    numbers: list[int | str] = []
    for tars in parts:
        for name, values in tars.fields().items():
            column = columns.setdefault(name, [])
            column += [None] * (len(numbers) - len(column)) + values
        numbers += tars.names()
    padded = {name: column + [None] * (len(numbers) - len(column)) for name, column in columns.items()}
    labels = read_labels(Table(where=where, columns=padded, numbers=numbers), config, but=set())
    count = sum(len(index.members) for index in train.indexes)
    rows = np.arange(len(numbers))
    return Parts(
        kind="webdataset",
        where=where,
        classes=labels.classes,
        train=train.images(rows[:count], labels.of(rows[:count])),
        val=None if val is None else val.images(rows[count:] - count, labels.of(rows[count:])),
        origin=origin,
        multilabel=labels.multilabel,
        notes=(labels.note,) if labels.note else (),
    )
