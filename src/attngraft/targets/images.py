"""The images that models are shown: files that somebody named, or the validation part of some data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from attngraft.errors import DataError, UsageError
from attngraft.strict import read
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.opening import open_images
from attngraft.tasks.images.sources.decoding import UnreadableImage, decode
from attngraft.training.run_folder import RunFolder, RunRecord


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """Images in a fixed order, opened one at a time."""

    where: str  #: the data's name, for readers
    names: Sequence[str]  #: each another one
    open: Callable[[int], Image.Image]
    labels: np.ndarray | None = None  #: (N,) classes, or (N, K) of 0 and 1; None: nobody says
    classes: tuple[str, ...] = ()
    named: bool = False  #: somebody named these images; False: they are what a run was validated on

    def __len__(self) -> int:
        return len(self.names)

    def some(self, count: int) -> list[int]:
        """Places of at most `count` images, evenly over all of them: data often lie class by class."""
        if count >= len(self):
            return list(range(len(self)))
        return [int(place) for place in np.linspace(0, len(self) - 1, count).round()]


def images_from_files(paths: Sequence[str]) -> ImageSet:
    """Image files.

    Raises:
        UsageError: there are none.
    """
    if not paths:
        raise UsageError("no images: name some with --image, or data with --data")

    def opened(place: int) -> Image.Image:
        try:
            with open(paths[place], "rb") as stream:
                return decode(stream, where=paths[place])
        except UnreadableImage as error:
            raise DataError(f"{paths[place]}: this is no image that can be read ({error.reason})") from None
        except OSError as error:
            raise DataError(f"{paths[place]}: {error.strerror or error}") from None

    where = paths[0] if len(paths) == 1 else f"{len(paths)} files"
    return ImageSet(where=where, names=shortest_names(paths), open=opened, named=True)


def shortest_names(paths: Sequence[str]) -> list[str]:
    """Each path's end, as few folders of it as no other path ends in (`a/1.jpg`, `b/1.jpg`, `2.jpg`); a path that is
    there again gets a number."""
    parts = [[part for part in Path(path).parts if part != Path(path).anchor] for path in paths]
    apart = {tuple(each) for each in parts}
    ends = Counter(each[start:] for each in apart for start in range(len(each)))
    names = []
    for each in parts:
        short = next((start for start in reversed(range(len(each))) if ends[tuple(each[start:])] == 1), 0)
        names.append("/".join(each[short:]))
    return numbered_names(names)


def numbered_names(names: Iterable[str]) -> list[str]:
    """Names with a number behind what was there before: `rose`, `rose (2)`."""
    numbers: Counter[str] = Counter()  # the last one of each name
    taken: set[str] = set()
    found = []
    for name in names:
        other = name
        while other in taken:
            numbers[name] += 1
            other = f"{name} ({numbers[name] + 1})"
        taken.add(other)
        found.append(other)
    return found


def images_from_data(source: str, *, split: str | None = None) -> ImageSet:
    """The validation part of any source that `--data` takes, or the part called `split`.

    Raises:
        DataError: it cannot be opened.
    """
    return _opened(DataConfig(source=source, val_split=split), None, named=True)


def images_from_run(record: RunRecord, *, data: str | None = None, split: str | None = None) -> ImageSet:
    """What a run was validated on; or the same part of other data, or another part of its own.

    Raises:
        UsageError: the run's task is not of images.
        DataError: the data cannot be opened.
    """
    section: dict[str, Any] = dict(record.recipe.task.get("data", {}))
    if not section:
        raise UsageError(f"{record.folder}: the task of this run ({record.recipe.task['name']}) has no images to show")
    kept: Path | None = RunFolder(record.folder).split
    if data is not None or split is not None:
        section.pop("split_file", None)
        kept = None
    if data is not None:
        section["source"] = data
    if split is not None:
        section |= {"val_split": split, "val_fraction": None}
    config = read(DataConfig, section, where="task.data")
    return _opened(
        config, kept if kept is not None and kept.is_file() else None, named=data is not None or split is not None
    )


def _opened(config: DataConfig, kept: Path | None, *, named: bool) -> ImageSet:
    found = open_images(config, saved_split=kept)
    return ImageSet(
        where=found.source.where,
        names=numbered_names(found.val.names),
        open=found.val.open,
        labels=found.val.labels,
        classes=found.source.classes,
        named=named,
    )
