"""Images that lie decoded in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from attngraft.tasks.images.sources.decoding import in_mode
from attngraft.tasks.images.sources.images import Images, digest_of


class ArrayImages(Images):
    """Pixels, uint8: (N, H, W) gray or (N, H, W, C) with 3 or 4 channels, or a list of N such images of any sizes."""

    in_memory = True

    def __init__(self, pixels: np.ndarray | Sequence[np.ndarray], *, names: Sequence[str], labels: np.ndarray) -> None:
        self.pixels, self.names, self.labels = pixels, names, labels

    def open(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[index])

    def take(self, indices: np.ndarray, labels: np.ndarray) -> ArrayImages:
        pixels = self.pixels[indices] if isinstance(self.pixels, np.ndarray) else [self.pixels[i] for i in indices]
        return ArrayImages(pixels, names=[self.names[i] for i in indices], labels=labels)

    def digest(self) -> str:
        return digest_of(self.pixels)


def decoded(images: Images, mode: str) -> ArrayImages:
    """All of `images` decoded into memory, as RGB or L."""
    pixels = [np.asarray(in_mode(images.open(i), mode)) for i in range(len(images))]
    return ArrayImages(pixels, names=images.names, labels=images.labels)
