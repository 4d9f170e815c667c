"""Tars: one with class folders (or parts of class folders) inside, or train.tar beside val.tar in a folder.

A tar is listed once; images are then read by their place in the file, so that workers need no index of their own.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.images import FileImages, Images, Stamp
from attngraft.tasks.images.sources.listing import (
    Listing,
    by_class,
    divide,
    is_image,
    is_junk,
    together,
    wrapper,
)
from attngraft.tasks.images.sources.parts import (
    TRAIN_NAMES,
    VAL_NAMES,
    Parts,
    find_name,
    missing_validation,
)

Places = dict[str, tuple[int, int]]  #: member -> (offset of its bytes, how many)


class TarImages(FileImages):
    """Members of an uncompressed tar. Every process opens the file for itself (a forked one would share its position)."""

    def __init__(
        self, path: Path, *, members: Sequence[str], places: np.ndarray, labels: np.ndarray, prefix: str = ""
    ) -> None:
        self.path, self.members, self.places, self.labels, self.prefix = path, members, places, labels, prefix
        self.names = [prefix + member for member in members]
        self._file: BinaryIO | None = None
        self._owner = -1

    def where(self, index: int) -> str:
        return f"{self.path}: {self.members[index]}"

    def raw(self, index: int) -> IO[bytes]:
        where = self.where(index)
        offset, size = (int(number) for number in self.places[index])
        try:
            stream = self._stream()
            stream.seek(offset)
            data = stream.read(size)
        except OSError as error:
            raise DataError(f"{where}: cannot be read ({error.strerror})") from None
        if len(data) < size:
            raise DataError(f"{where}: the tar ends before this image does; it was changed or cut off")
        return io.BytesIO(data)

    def stamp(self, index: int) -> Stamp | None:
        try:
            changed = os.stat(self.path).st_mtime_ns
        except OSError:
            return None
        return int(self.places[index, 1]), changed

    def take(self, indices: np.ndarray, labels: np.ndarray) -> TarImages:
        members = [self.members[i] for i in indices]
        return TarImages(self.path, members=members, places=self.places[indices], labels=labels, prefix=self.prefix)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None, "_owner": -1}

    def _stream(self) -> BinaryIO:
        if self._file is None or self._owner != os.getpid():
            self._file, self._owner = self.path.open("rb"), os.getpid()
        return self._file


def open_tar(path: Path, config: DataConfig) -> Parts:
    """One tar, inside like a folder.

    Raises:
        DataError: not an uncompressed tar, or see `listing.divide`.
    """
    listing, places = list_tar(path)
    return divide(listing, config, kind="tar", make=_maker(path, places))


def tars_in(folder: Path) -> list[str]:
    """Names, without extension, of the tars that lie directly in `folder`."""
    return sorted(entry.stem for entry in folder.iterdir() if entry.suffix == ".tar" and not is_junk(entry.name))


def open_tar_pair(folder: Path, config: DataConfig) -> Parts:
    """A tar for each part, or a single tar, in a folder.

    Raises:
        DataError: no training or validation tar; not an uncompressed tar; no class folders inside.
    """
    there = tars_in(folder)
    train = find_name(there, config.train_split, TRAIN_NAMES, field="train_split", where=str(folder))
    if train is None and len(there) == 1:
        return open_tar(folder / f"{there[0]}.tar", config)
    if train is None:
        listed = ", ".join(f"{name}.tar" for name in there[:8])
        raise DataError(f"{folder}: no train.tar among {listed}; name the training tar with task.data.train_split")
    named = config.val_split or config.val_fraction is None
    val = find_name(there, config.val_split, VAL_NAMES, field="val_split", where=str(folder)) if named else None
    if named and val is None:
        raise missing_validation(str(folder), train, there)
    parts = {name: _open_part(folder, name) for name in (train, val) if name is not None}
    return together(
        parts[train][0],
        parts[val][0] if val else None,
        kind="tar",
        where=str(folder),
        origin=f"{train}.tar and {val}.tar" if val else f"{train}.tar",
        make=(parts[train][1], parts[val or train][1]),
    )


def _open_part(folder: Path, name: str) -> tuple[dict[str, list[str]], Callable[[list[str], np.ndarray], Images]]:
    path = folder / f"{name}.tar"
    listing, places = list_tar(path)
    if not listing.files:
        raise DataError(f"{path}: holds no images")
    inside = wrapper(listing)
    depth = inside.count("/") + 1 if inside else 0
    return by_class(listing, depth), _maker(path, places, prefix=f"{path.name}/")


def _maker(path: Path, places: Places, *, prefix: str = "") -> Callable[[list[str], np.ndarray], Images]:
    def make(members: list[str], labels: np.ndarray) -> Images:
        where = np.array([places[member] for member in members], dtype=np.int64).reshape(-1, 2)
        return TarImages(path, members=members, places=where, labels=labels, prefix=prefix)

    return make


def list_tar(path: Path) -> tuple[Listing, Places]:
    """What an uncompressed tar holds, and where in the file each image's bytes lie.

    Raises:
        DataError: damaged, compressed, or no tar at all.
    """
    places: Places = {}
    folders: dict[str, None] = {}
    try:
        with tarfile.open(path, mode="r:") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if any(is_junk(piece) for piece in name.split("/")):
                    continue
                if member.isdir():
                    folders[name] = None
                elif member.isreg() and is_image(name):
                    places[name] = member.offset_data, member.size
                    folders.update(dict.fromkeys(_parents(name)))
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise DataError(
            f"{path}: not readable as an uncompressed tar ({error}); unpack it, or pack it again without compression"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    return Listing(str(path), tuple(places), tuple(folders)), places


def _parents(name: str) -> list[str]:
    pieces = name.split("/")[:-1]
    return ["/".join(pieces[: i + 1]) for i in range(len(pieces))]
