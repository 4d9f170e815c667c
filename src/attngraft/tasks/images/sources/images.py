"""A labelled set of images that can be opened one at a time, wherever they lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import IO

import numpy as np
from PIL import Image

from attngraft.errors import DataError

#: what Pillow raises on damaged or hostile files, beside OSError
_UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)


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


def decode(stream: IO[bytes], *, where: str) -> Image.Image:
    """A decoded image from an open file.

    Raises:
        DataError: no image, or a damaged one; names `where`.
    """
    try:
        image = Image.open(stream)
        image.load()
    except _UNREADABLE as error:
        reason = str(error) if str(error) and "BytesIO" not in str(error) else type(error).__name__
        raise DataError(f"{where}: cannot be read as an image ({reason}); replace or remove it") from None
    return image


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    """`image` as RGB or L. Deep gray images are scaled to 8 bits (Pillow alone would clip them)."""
    if image.mode == mode:
        return image
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert(mode)
