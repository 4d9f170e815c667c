"""Decoded images in memory-mapped files, shared by the runs and processes of a study; see `attngraft.cache.DecodedCache`.

The pixels are those that the transforms get, so results are the same bits with and without the cache. Every image has a
fixed place in its file, which begins with a table of the sizes of the images that are complete. A writer writes the pixels
before the table's entry, so a killed writer leaves no partial image; two writers of an image write the same bytes. No locks
are needed.
"""

from __future__ import annotations

import io
import logging
import mmap
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from attngraft.cache import DecodedCache
from attngraft.files import open_in_place
from attngraft.tasks.images.sources.base import Images, Stamp
from attngraft.tasks.images.sources.decoding import in_mode

_ENTRY = 8  #: bytes of an entry of the table: width and height, uint32

log = logging.getLogger(__name__)


def decoded_bytes(sizes: np.ndarray, mode: str) -> int | None:
    """Return the size of images with `sizes` (N, 2) in `mode`; None if one of the sizes is 0, for unknown."""
    return None if not sizes.all() else int(_slots(sizes, mode).sum())


def keep_decoded(
    parts: Mapping[str, Images], sizes: Mapping[str, np.ndarray], *, mode: str, cache: DecodedCache, origin: str
) -> dict[str, Images]:
    """Return `parts` with images that are decoded once and then read from files in the cache's folder.

    Images that exceed the limit are decoded each time. No file is opened before the first image.

    Args:
        parts: images of each split.
        sizes: width and height of the images of each split, (N, 2).
        mode: the host's mode, L or RGB.
        cache: folder and limit.
        origin: the source's name, part of the file names.
    """
    slots = {name: _slots(sizes[name], mode) for name in parts}
    stamps = {name: [images.stamp(index) for index in range(len(images))] for name, images in parts.items()}
    keys = {}
    for name, images in parts.items():
        places = [f"{images.where(index)}\0{stamp}" for index, stamp in enumerate(stamps[name])]
        # memory-mapped files on network disks are not synchronized between machines
        text = "\0".join([platform.node(), origin, mode, *places])
        keys[name] = text.encode("utf-8", "surrogateescape"), slots[name].tobytes()
    own = {cache.file(*key, examples=0).name.partition("-")[0] for key in keys.values()}
    room = cache.room(sum(int(each.sum()) for each in slots.values()))
    room, kept = min(room, cache.limit - _other_bytes(cache.folder, own)), dict(parts)
    for name, images in parts.items():
        ends = np.cumsum(slots[name])
        ends = ends[: int(np.searchsorted(ends, room, side="right"))]
        if len(ends):
            room -= int(ends[-1])
            file = DecodedFile(cache.file(*keys[name], examples=len(ends)), ends=ends, mode=mode)
            kept[name] = DecodedImages(images, file, rows=np.arange(len(images)), stamps=stamps[name])
    return kept


def _slots(sizes: np.ndarray, mode: str) -> np.ndarray:
    return sizes.astype(np.int64).prod(axis=1) * len(mode)


def _other_bytes(folder: Path, own: set[str]) -> int:
    """Return the size of the files of other images, such as those of a stage with its own data."""
    try:
        return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name.partition("-")[0] not in own)
    except OSError:  # does not exist yet
        return 0


@dataclass(kw_only=True)
class _Opened:
    """An open file; its maps and descriptor are shared with forked processes."""

    file: io.FileIO
    table: np.ndarray  #: (K, 2) uint32 width and height; 0: missing
    pixels: np.ndarray  #: all bytes behind the table

    def __del__(self) -> None:
        self.file.close()  # else Python warns that the file was not closed


class DecodedFile:
    """File of up to K images, opened on first use; picklable.

    Args:
        path: created on first use. Its name determines its size and contents.
        ends: end of the place of each image behind the table, (K,) int64.
        mode: L or RGB.
    """

    def __init__(self, path: Path, *, ends: np.ndarray, mode: str) -> None:
        self.path, self.ends, self.mode = path, ends, mode
        self._begin = -(-_ENTRY * len(ends) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._opened: _Opened | None = None
        self._failed = False  # whether this process gave up after an error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def read(self, row: int) -> Image.Image | None:
        """Return the image of `row`; None if it is not in the file."""
        opened = self._open() if row < len(self.ends) else None
        if opened is None:
            return None
        width, height = (int(number) for number in opened.table[row])
        if not width or not height:
            return None
        begin = self._slot_begin(row)
        pixels = opened.pixels[begin : begin + width * height * len(self.mode)]
        return Image.fromarray(pixels.reshape((height, width) if self.mode == "L" else (height, width, 3)))

    def write(self, row: int, image: Image.Image) -> None:
        """Add an image of the file's mode, if it fits into its place. An error (a full disk) is only logged."""
        opened = self._open() if row < len(self.ends) else None
        begin = self._slot_begin(row) if opened is not None else 0
        if opened is None or image.width * image.height * len(self.mode) > self.ends[row] - begin:
            return
        try:
            _write(opened.file, image.tobytes(), self._begin + begin)
            _write(opened.file, np.array(image.size, dtype=np.uint32).tobytes(), _ENTRY * row)
        except OSError as error:
            self._give_up(error)

    def _slot_begin(self, row: int) -> int:
        return int(self.ends[row - 1]) if row else 0

    def _open(self) -> _Opened | None:
        if self._opened is None and not self._failed:
            size = self._begin + int(self.ends[-1])
            try:
                self.path.parent.mkdir(exist_ok=True)
                file = open_in_place(self.path, os.O_RDWR | os.O_CREAT)
                if os.fstat(file.fileno()).st_size != size:
                    os.ftruncate(file.fileno(), size)  # to a sparse file; all processes set the same size
                content = np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), dtype=np.uint8)
            except (OSError, ValueError) as error:
                self._give_up(error)
                return None
            table = content[: _ENTRY * len(self.ends)].view(np.uint32).reshape(-1, 2)
            self._opened = _Opened(file=file, table=table, pixels=content[self._begin :])
        return self._opened

    def _give_up(self, error: Exception) -> None:
        log.debug("%s: decoded images are not kept (%s)", self.path, error)
        self._failed, self._opened = True, None


def _write(file: io.FileIO, content: bytes, offset: int) -> None:
    left = memoryview(content)
    while left:
        written = os.pwrite(file.fileno(), left, offset)
        left, offset = left[written:], offset + written


class DecodedImages(Images):
    """Images in the host's mode, read from a `DecodedFile` or else decoded and added to it.

    Args:
        images: the images to decode.
        file: the file of decoded images.
        rows: row of each image in the file, (N,).
        stamps: stamp of the image of every row. An image whose file was changed since is not added.
    """

    def __init__(self, images: Images, file: DecodedFile, *, rows: np.ndarray, stamps: Sequence[Stamp | None]) -> None:
        self.images, self.file, self.rows, self.stamps = images, file, rows, stamps
        self.names, self.labels = images.names, images.labels

    def open(self, index: int) -> Image.Image:
        row = int(self.rows[index])
        image = self.file.read(row)
        if image is None:
            image = in_mode(self.images.open(index), self.file.mode)
            if self.images.stamp(index) == self.stamps[row]:
                self.file.write(row, image)
        return image

    def take(self, indices: np.ndarray, labels: np.ndarray) -> DecodedImages:
        images = self.images.take(indices, labels)
        return DecodedImages(images, self.file, rows=self.rows[indices], stamps=self.stamps)

    def where(self, index: int) -> str:
        return self.images.where(index)

    @property
    def shard_index(self) -> np.ndarray | None:
        return self.images.shard_index

    def stamp(self, index: int) -> Stamp | None:
        return self.images.stamp(index)

    def digest(self) -> str:
        return self.images.digest()
