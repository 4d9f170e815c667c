"""Folders of images: `train/<class>/...` and `val/<class>/...`, or only one folder per class."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from attngraft.counting import count
from attngraft.errors import DataAccessError, DataError
from attngraft.opening import open_regular
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.base import TRAIN_NAMES, VAL_NAMES, FileImages, ImageSource, Stamp, file_stamp
from attngraft.tasks.images.sources.listing import Listing, is_image, is_junk, is_unsupported, split_folders

#: usual names of a folder with all images
USUAL_FOLDERS = ("images", "imgs", "image", "img", "data", "files", "train", "train_images", "test_images")

#: folders of the system, some of which have no end; /dev/shm has data
_SYSTEM = re.compile(r"/(proc|sys|dev(?!/shm(/|$)))(/|$)")
_DEEPEST = 100  #: largest number of folders inside of each other
#: `list_folder` gives up after this many folders without images, above the 21,841 folders of annotations of ImageNet-21k ...
_WITHOUT_IMAGES = 25_000
_PER_FOLDER = 10  #: ... if they are this many times as many as the folders with images


class FolderImages(FileImages):
    """Image files below `root`, opened on access and closed afterwards."""

    def __init__(self, root: Path, *, names: Sequence[str], labels: np.ndarray) -> None:
        self.root, self.names, self.labels = root, names, labels

    def where(self, index: int) -> str:
        return os.path.join(self.root, self.names[index])  # pathlib would take longer than stat

    def raw(self, index: int) -> IO[bytes]:
        path = self.where(index)
        try:
            return open_regular(path)
        except OSError as error:
            why = "broken link" if os.path.islink(path) and not os.path.exists(path) else error.strerror
            raise DataAccessError(f"{path}: cannot be opened ({why}); restore or replace it") from None

    def stamp(self, index: int) -> Stamp | None:
        return file_stamp(self.where(index))

    def take(self, indices: np.ndarray, labels: np.ndarray) -> FolderImages:
        return FolderImages(self.root, names=[self.names[i] for i in indices.tolist()], labels=labels)


def open_folder(path: Path, config: DataConfig) -> ImageSource:
    """Open the images below `path`.

    Raises:
        DataError: a folder cannot be read; see also `listing.split_folders`.
    """
    return split_folders(
        list_folder(path),
        config,
        kind="folder",
        make=lambda names, labels: FolderImages(path, names=names, labels=labels),
    )


def has_class_folders(path: Path) -> bool:
    """Return whether the subfolders of `path` look like splits or classes, so that they define the labels."""
    below = [entry.name for entry in os.scandir(path) if not is_junk(entry.name) and _is_folder(entry)]
    train = next((name for name in below if name.lower() in TRAIN_NAMES), None)
    if train is not None:
        return sum(_is_folder(entry) for entry in os.scandir(path / train)) > 1
    return sum(name.lower() not in (*VAL_NAMES, *USUAL_FOLDERS) for name in below) > 1


def list_folder(path: Path) -> Listing:
    """List all image files and folders below `path`; links are followed, except cyclic ones and those to system folders.

    Raises:
        DataError: a folder cannot be read, `path` is a folder of the system, or nearly all folders below it have no images.
    """
    if _SYSTEM.match(os.path.realpath(path)):
        raise DataError(f"{path}: a folder of the system; give the folder with your images")
    files: list[str] = []
    folders: list[str] = []
    unsupported: list[str] = []
    special: list[str] = []
    with_images = without = 0
    pending: list[tuple[str, frozenset[str]]] = [("", frozenset())]
    while pending:
        inside, above = pending.pop()
        folder = path / inside
        real = os.path.realpath(folder)
        if real in above or _SYSTEM.match(real):
            continue
        if len(above) > _DEEPEST:
            raise DataError(
                f"{path}: has more than {_DEEPEST} folders inside of each other; give the folder of your images"
            )
        count(f"folders in {path}", with_images + without, with_images + without + len(pending) + 1)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            raise DataError(f"{folder}: the folder cannot be read ({error.strerror})") from None
        known = len(files)
        for entry in entries:
            relative = f"{inside}/{entry.name}" if inside else entry.name
            if is_junk(entry.name):
                continue
            if _is_folder(entry):
                folders.append(relative)
                pending.append((relative, above | {real}))
            elif is_image(relative):  # broken links, FIFOs, ... are reported
                files.append(relative)
            elif not _is_file(entry):
                special.append(relative)
            elif is_unsupported(relative):
                unsupported.append(relative)
        if len(files) > known:
            with_images += 1
        else:
            without += 1
        if without > max(_WITHOUT_IMAGES, _PER_FOLDER * with_images):
            raise DataError(
                f"{path}: {without:,} folders have no images, and only {with_images:,} have some; give the folder with "
                "your images"
            )
    count(f"folders in {path}", with_images + without, with_images + without)
    return Listing(str(path), tuple(files), tuple(folders), tuple(unsupported), tuple(special))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that points to itself
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # as above
        return False
