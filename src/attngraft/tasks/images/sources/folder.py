"""A folder: `train/<class>/...` beside `val/<class>/...`, or a folder per class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.images import FileImages, Stamp
from attngraft.tasks.images.sources.listing import Listing, divide, is_foreign, is_image, is_junk
from attngraft.tasks.images.sources.parts import TRAIN_NAMES, VAL_NAMES, Parts

USUAL_FOLDERS = ("images", "imgs", "image", "img", "data", "files", "train")  #: that hold images of all classes


class FolderImages(FileImages):
    """Image files below `root`; each is opened when it is asked for, and closed."""

    def __init__(self, root: Path, *, names: Sequence[str], labels: np.ndarray) -> None:
        self.root, self.names, self.labels = root, names, labels

    def where(self, index: int) -> str:
        return os.path.join(self.root, self.names[index])  # pathlib would take longer than to ask for a file's date

    def raw(self, index: int) -> IO[bytes]:
        path = self.where(index)
        try:
            return open(path, "rb")
        except OSError as error:
            why = "a link that leads nowhere" if os.path.islink(path) and not os.path.exists(path) else error.strerror
            raise DataError(f"{path}: cannot be opened ({why})") from None

    def stamp(self, index: int) -> Stamp | None:
        try:
            found = os.stat(self.where(index))
        except OSError:
            return None
        return found.st_size, found.st_mtime_ns

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


def has_class_folders(path: Path) -> bool:
    """Whether `path` looks like parts or classes in folders, so that a table in it is not what says the labels."""
    below = [entry.name for entry in os.scandir(path) if not is_junk(entry.name) and _is_folder(entry)]
    part = next((name for name in below if name.lower() in TRAIN_NAMES), None)
    if part is not None:
        return sum(_is_folder(entry) for entry in os.scandir(path / part)) > 1
    return sum(name.lower() not in (*VAL_NAMES, *USUAL_FOLDERS) for name in below) > 1


def list_folder(path: Path) -> Listing:
    """All image files and folders below `path`; links are followed, but not in circles."""
    files: list[str] = []
    folders: list[str] = []
    foreign: list[str] = []
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
            if _is_folder(entry):
                folders.append(relative)
                waiting.append((relative, above | {real}))
            elif is_image(relative) and (entry.is_symlink() or entry.is_file()):  # no pipes; a broken link is told of
                files.append(relative)
            elif is_foreign(relative):
                foreign.append(relative)
    return Listing(str(path), tuple(files), tuple(folders), tuple(foreign))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
