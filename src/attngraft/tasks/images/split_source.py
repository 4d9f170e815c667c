"""Annotated images of any kind, split into training, validation and test."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.config import SplitConfig
from attngraft.tasks.images.folders import SPLITS
from attngraft.tasks.images.sources.splitting import divide
from attngraft.tasks.images.stored import Stored, open_stored, stored_bytes


class Annotated(Protocol):
    """Images and their annotations, in the order of their names."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def images(self) -> tuple[Any, ...]: ...

    def __len__(self) -> int: ...

    def take(self, indices: np.ndarray) -> Self: ...

    def joined(self, other: Any) -> Self: ...


T = TypeVar("T", bound=Annotated)

_COMPARED = 2**16  #: bytes at the start of images of one size, of which copies are the same


@dataclass(frozen=True, kw_only=True)
class SplitSource(Generic[T]):
    """Images with annotations, split."""

    where: str
    train: T
    val: T
    test: T | None
    origin: str  #: description of the split, for the report
    drawn: Mapping[str, T] = field(default_factory=dict)  #: parts of a random split; empty if it is not random
    notes: tuple[str, ...] = ()

    def parts(self) -> dict[str, T]:
        """Return the images of each split."""
        return {"train": self.train, "val": self.val} | ({} if self.test is None else {"test": self.test})

    def copies(self) -> list[str]:
        """Return a note for each split with images that are copies of those of an earlier split."""
        notes, earlier = list[str](), dict[int, list[Stored]]()
        digests: dict[int, set[bytes]] = {}
        for name, part in self.parts().items():
            files = [(_size(image), image) for image in part.images]
            for size in {size for size, _ in files} & earlier.keys():
                digests[size] = set(map(_start, earlier[size]))
            copied = [image for size, image in files if size in earlier and _start(image) in digests[size]]
            for size, image in files:
                earlier.setdefault(size, []).append(image)
            if copied:
                verb = "image is a copy" if len(copied) == 1 else "images are copies"
                notes.append(
                    f"Leak: {len(copied)} {name} {verb} of images of an earlier split, such as {copied[0]}, so the results "
                    "are too good."
                )
        return notes

    def find(self, names: Sequence[str]) -> list[tuple[T, int]]:
        """Return the split of each name, and its index there.

        Raises:
            DataError: there is no image of a name.
        """
        found = {name: (part, index) for part in self.parts().values() for index, name in enumerate(part.names)}
        if lost := [name for name in names if name not in found]:
            raise DataError(f"{self.where}: no image {lost[0]} any more; restore it")
        return [found[name] for name in names]


def split_images(
    parts: Mapping[str, T],
    config: SplitConfig,
    *,
    root: Path,
    origin: str,
    notes: Sequence[str],
    saved_split: Path | None,
) -> SplitSource[T]:
    """Return the final splits: those of the data, or a random one if they have no validation split or it is asked for.

    Args:
        parts: images of each split of the data.
        config: settings of the split.
        root: the folder of the data.
        origin: description of the splits of the data.
        notes: notes on the data.
        saved_split: file that replaces the random split, or None.

    Raises:
        DataError: a split has no images, or cannot be drawn.
    """
    train, val, test = (parts.get(split) for split in SPLITS)
    if train is None:
        raise DataError(f"{root}: no images for training (called train or training); found only {', '.join(parts)}")
    settings, drawn = config.as_images(), dict[str, T]()
    if val is None or settings.splits_train or settings.folds is not None:
        if settings.folds is not None and val is not None:
            train = train.joined(val)
        division = divide(
            train,
            np.zeros(len(train)),  # numbers are split without stratification
            settings,
            where=str(root),
            origin="the images",
            classes=(),
            saved_split=saved_split,
        )
        if settings.split_file is None:
            drawn = {name: train.take(indices) for name, indices in division.indices().items()}
        origin, notes = division.origin, (*notes, *division.notes)
        train, val = train.take(np.flatnonzero(~division.in_val)), train.take(np.flatnonzero(division.in_val))
    for name, images in {"training": train, "validation": val}.items():
        if not len(images):
            raise DataError(f"{root}: no images for {name} ({origin}); add some, or change the split")
    return SplitSource(where=str(root), train=train, val=val, test=test, origin=origin, drawn=drawn, notes=tuple(notes))


def _size(image: Stored) -> int:
    try:
        return stored_bytes(image)
    except (OSError, DataError):
        return -1


def _start(image: Stored) -> bytes:
    try:
        with open_stored(image) as file:
            return hashlib.sha256(file.read(_COMPARED)).digest()
    except (OSError, DataError):  # reported when the image is read
        return str(image).encode(errors="surrogateescape")
