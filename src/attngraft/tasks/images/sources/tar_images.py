"""Images inside uncompressed tars, read by their place in the file."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.sources.images import FileImages, Stamp

_OPEN = 64  #: tars that a process keeps open


class TarImages(FileImages):
    """Members of one or more tars. Every process opens the files for itself (a forked one would share their positions).

    Args:
        paths: the tars.
        members: each image's name inside its tar.
        places: (N, 3) int64: which tar, where in it the image's bytes begin, how many they are.
        prefixed: whether the tar's own name belongs to an image's.
    """

    def __init__(
        self, paths: Sequence[Path], *, members: Sequence[str], places: np.ndarray, labels: np.ndarray, prefixed: bool
    ) -> None:
        self.paths, self.members, self.places, self.labels, self.prefixed = paths, members, places, labels, prefixed
        tars = places[:, 0].tolist()
        self.names = (
            [f"{paths[tar].name}/{member}" for tar, member in zip(tars, members, strict=True)] if prefixed else members
        )
        self._files: dict[int, BinaryIO] = {}
        self._owner = -1
        self._changed: dict[int, int | None] = {}

    @property
    def shelf(self) -> np.ndarray:
        return self.places[:, :2]

    def where(self, index: int) -> str:
        return f"{self.paths[self.places[index, 0]]}: {self.members[index]}"

    def raw(self, index: int) -> IO[bytes]:
        tar, offset, size = (int(number) for number in self.places[index])
        try:
            file = self._file(tar)
            file.seek(offset)
            data = file.read(size)
        except OSError as error:
            raise DataError(f"{self.where(index)}: cannot be read ({error.strerror})") from None
        if len(data) < size:
            raise DataError(f"{self.where(index)}: the tar ends before this image does; it was changed or cut off")
        return io.BytesIO(data)

    def stamp(self, index: int) -> Stamp | None:
        tar = int(self.places[index, 0])
        if tar not in self._changed:
            try:
                self._changed[tar] = os.stat(self.paths[tar]).st_mtime_ns
            except OSError:
                self._changed[tar] = None
        changed = self._changed[tar]
        return None if changed is None else (int(self.places[index, 2]), changed)

    def take(self, indices: np.ndarray, labels: np.ndarray) -> TarImages:
        members = [self.members[i] for i in indices]
        return TarImages(
            self.paths, members=members, places=self.places[indices], labels=labels, prefixed=self.prefixed
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": {}, "_owner": -1, "_changed": {}}

    def _file(self, tar: int) -> BinaryIO:
        if self._owner != os.getpid():
            self._files, self._owner = {}, os.getpid()
        if tar not in self._files:
            while len(self._files) >= _OPEN:
                self._files.pop(next(iter(self._files))).close()
            self._files[tar] = self.paths[tar].open("rb")
        return self._files[tar]
