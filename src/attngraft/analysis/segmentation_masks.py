"""Boundaries between classes of labeled images, at the resolution of a model's feature map."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from attngraft.errors import DataError, UsageError
from attngraft.targets.handle import ModelHandle
from attngraft.targets.images import ImageSet
from attngraft.tasks.images.boundaries import boundary
from attngraft.tasks.images.stored import read_mask

RADIUS = 2  #: radius of boundaries in pixels of the model's input


class SegmentationMasks:
    """The label maps of images: their own, or a folder of PNG files of class indices with one channel, named like them.

    The label map of `a/1.jpg` is `a/1.png`, or `1.png` if no other image has this stem.

    Args:
        folder: the folder; None: the images' own label maps.
        images: the images.

    Raises:
        UsageError: the folder does not exist.
    """

    def __init__(self, folder: Path | None, images: ImageSet) -> None:
        if folder is not None and not folder.is_dir():
            raise UsageError(f"--label-maps {folder}: the folder does not exist")
        self.where = images.source if folder is None else str(folder)
        self._folder, self._images = folder, images
        self._stems = Counter(PurePosixPath(name).stem for name in images.names)

    def boundaries(self, indices: Sequence[int], model: ModelHandle, size: tuple[int, int]) -> Tensor:
        """Return the share of boundary pixels at each position of a map, (B, rows, columns).

        Labels are resized (nearest neighbor) and cropped like the model's images.

        Raises:
            DataError: an image's label map is missing, cannot be read, or has another size; the message contains the file.
        """
        labels = torch.stack([model.preparation.label_map(self._labels(index)) for index in indices])
        return adaptive_avg_pool2d(boundary(labels, radius=RADIUS).float(), size)

    def _labels(self, index: int) -> np.ndarray:
        """Return the labels in the size of the image, (H, W)."""
        if self._folder is None:
            if self._images.label_map is None:
                raise TypeError(f"{self.where}: the images have no label maps")
            return self._images.label_map(index)
        file = self._file(self._folder, self._images.names[index])
        labels = np.asarray(read_mask(file))
        if labels.ndim != 2 or labels.dtype.kind not in "biu":
            raise DataError(
                f"{file}: not a label map; use a PNG with one channel (or a palette) and a class index per pixel"
            )
        width, height = self._images.open(index).size
        if labels.shape != (height, width):
            raise DataError(
                f"{file}: has {labels.shape[1]} x {labels.shape[0]} labels for an image of {width} x {height} pixels; save "
                "the label map in the size of the image"
            )
        return labels

    def _file(self, folder: Path, name: str) -> Path:
        path = PurePosixPath(name)
        by_path, by_stem = folder / path.with_suffix(".png"), folder / f"{path.stem}.png"
        unique = self._stems[path.stem] == 1
        for file in (by_path, by_stem) if unique else (by_path,):
            if file.is_file():
                return file
        other = f" (nor {by_stem})" if unique and by_stem != by_path else ""
        raise DataError(f"{by_path}: label map of {name} not found{other}; add a label map for each image")
