"""A folder: `train/<class>/...` beside `val/<class>/...`, or a folder per class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.images import Images, decode
from attngraft.tasks.images.sources.listing import Listing, divide, is_image, is_junk
from attngraft.tasks.images.sources.parts import Parts


class FolderImages(Images):
    """Image files below `root`; each is opened when it is asked for, and closed."""

    def __init__(self, root: Path, *, names: Sequence[str], labels: np.ndarray) -> None:
        self.root, self.names, self.labels = root, names, labels

    def open(self, index: int) -> Image.Image:
        path = self.root / self.names[index]
        try:
            with path.open("rb") as stream:
                return decode(stream, where=str(path))
        except OSError as error:
            raise DataError(
                f"{path}: cannot be opened ({error.strerror}); it was there when the data were listed"
            ) from None

    def take(self, indices: np.ndarray, labels: np.ndarray) -> FolderImages:
        return FolderImages(self.root, names=[self.names[i] for i in indices], labels=labels)


def open_folder(path: Path, config: DataConfig) -> Parts:
    """The images below `path`.

    Raises:
        DataError: see `listing.divide`; a folder that cannot be read.
    """
    listing = list_folder(path)
    return divide(
        listing, config, kind="folder", make=lambda names, labels: FolderImages(path, names=names, labels=labels)
    )


def list_folder(path: Path) -> Listing:
    """All image files and folders below `path`; links are followed, but not in circles."""
    files: list[str] = []
    folders: list[str] = []
    waiting: list[tuple[str, frozenset[str]]] = [("", frozenset())]
    while waiting:
        inside, above = waiting.pop()
        here = path / inside
        real = os.path.realpath(here)
        if real in above:
            continue
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            raise DataError(f"{here}: the folder cannot be read ({error.strerror})") from None
        for entry in entries:
            relative = f"{inside}/{entry.name}" if inside else entry.name
            if is_junk(entry.name):
                continue
            if entry.is_dir():
                folders.append(relative)
                waiting.append((relative, above | {real}))
            elif is_image(relative):
                files.append(relative)
    return Listing(str(path), tuple(files), tuple(folders))
