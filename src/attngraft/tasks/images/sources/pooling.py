"""Images of several splits as one, for cross-validation."""

from __future__ import annotations

import numpy as np
from PIL import Image

from attngraft.tasks.images.sources.base import Images, Stamp
from attngraft.tasks.images.sources.folder import FolderImages


def pool(first: Images, second: Images) -> Images:
    """Return the images of both, in this order."""
    if isinstance(first, FolderImages) and isinstance(second, FolderImages) and first.root == second.root:
        labels = np.concatenate([first.labels, second.labels])
        return FolderImages(first.root, names=[*first.names, *second.names], labels=labels)
    return PooledImages((first, second))


class PooledImages(Images):
    """The images of several `parts`.

    Args:
        parts: the images.
        rows: part and position in the part of each image, (N, 2); None: all images in order.
        labels: labels of the images; None: those of the parts.
    """

    def __init__(
        self, parts: tuple[Images, ...], *, rows: np.ndarray | None = None, labels: np.ndarray | None = None
    ) -> None:
        if rows is None:
            rows = np.array([(part, index) for part, images in enumerate(parts) for index in range(len(images))])
        self.parts, self.rows = parts, rows.reshape(-1, 2)
        self.names = [parts[part].names[index] for part, index in self.rows]
        self.labels = np.concatenate([images.labels for images in parts]) if labels is None else labels
        self.in_memory = all(images.in_memory for images in parts)

    def _at(self, index: int) -> tuple[Images, int]:
        part, position = self.rows[index]
        return self.parts[part], int(position)

    def open(self, index: int) -> Image.Image:
        images, position = self._at(index)
        return images.open(position)

    def take(self, indices: np.ndarray, labels: np.ndarray) -> PooledImages:
        return PooledImages(self.parts, rows=self.rows[indices], labels=labels)

    def where(self, index: int) -> str:
        images, position = self._at(index)
        return images.where(position)

    def stamp(self, index: int) -> Stamp | None:
        images, position = self._at(index)
        return images.stamp(position)
