"""A labelled set of images that can be opened one at a time, wherever they lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import IO

import numpy as np
from PIL import Image

from attngraft.tasks.images.sources.decoding import decode

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
