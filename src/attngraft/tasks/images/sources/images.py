"""A labelled set of images that can be opened one at a time, wherever they lie."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import IO

import numpy as np
from PIL import Image

from attngraft.tasks.images.sources.decoding import decode

_SOME = 64  #: images that are decoded to know a data set again

Stamp = tuple[int, int]  #: a file's bytes, and when it was last changed (ns)


class Images(ABC):
    """Images with labels and names, in a fixed order. Picklable; holds no open file across processes.

    `labels` (N,) int64 are positions in the data set's list of classes; where an image may have several or no labels,
    they are (N, K) uint8, 1 for each of the K classes it has. `names` is what a user would call each image.
    """

    names: Sequence[str]
    labels: np.ndarray
    in_memory: bool = False  #: pixels are decoded already

    def __len__(self) -> int:
        return len(self.names)

    @abstractmethod
    def open(self, index: int) -> Image.Image:
        """The image at `index`, in its own mode.

        Raises:
            DataError: it cannot be read; names the file.
        """

    @abstractmethod
    def take(self, indices: np.ndarray, labels: np.ndarray) -> Images:
        """The images at `indices`, in that order, with new labels."""

    def where(self, index: int) -> str:
        """The image at `index` as messages name it: a path where it has one."""
        return self.names[index]

    @property
    def shelf(self) -> np.ndarray | None:
        """(N, 2) int64: where the images lie behind one another: number of a large file, and place in it; None where
        they lie in files of their own, or in memory."""
        return None

    def stamp(self, index: int) -> Stamp | None:
        """What changes when the file of this image does; None where there is no such file, or it is not there."""
        return None

    def digest(self) -> str:
        """SHA-256 that changes when the images do, whatever is made of them later: of what their files say, or, where
        nothing lies in a file, of the pixels of some of them, spread evenly.

        Raises:
            DataError: one of these cannot be read.
        """
        stamps = [self.stamp(index) for index in range(len(self))]
        if any(stamp is not None for stamp in stamps):
            return hashlib.sha256(repr(stamps).encode()).hexdigest()
        chosen = np.unique(np.linspace(0, len(self) - 1, min(_SOME, len(self))).round().astype(np.int64))
        return digest_of(np.asarray(self.open(int(index))) for index in chosen)


def digest_of(pixels: Iterable[np.ndarray]) -> str:
    """SHA-256 of images that are decoded."""
    seen = hashlib.sha256()
    for each in pixels:
        seen.update(f"{each.dtype} {each.shape}\0".encode())
        seen.update(np.ascontiguousarray(each).tobytes())
    return seen.hexdigest()


class FileImages(Images):
    """Images that lie as encoded files, on disk or inside other files."""

    @abstractmethod
    def raw(self, index: int) -> IO[bytes]:
        """The encoded image at `index`, open for reading.

        Raises:
            DataError: it cannot be read; names the file.
        """

    def open(self, index: int) -> Image.Image:
        with self.raw(index) as stream:
            return decode(stream, where=self.where(index))
