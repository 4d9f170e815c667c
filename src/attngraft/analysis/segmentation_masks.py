"""Boundaries between classes of labeled images, at the resolution of a model's feature map."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from attngraft.errors import DataError, UsageError
from attngraft.image_files import open_image
from attngraft.opening import DAMAGE, open_regular
from attngraft.targets.handle import ModelHandle
from attngraft.targets.images import ImageSet
from attngraft.tasks.images.boundaries import boundary
from attngraft.tasks.images.transforms import eval_transform

RADIUS = 2  #: radius of boundaries in pixels of the model's input


class SegmentationMasks:
    """A folder of label maps: PNG files of class indices with one channel, named like the images.

    The label map of `a/1.jpg` is `a/1.png`, or `1.png` if no other image has this stem.

    Raises:
        UsageError: the folder does not exist.
    """

    def __init__(self, folder: Path, images: ImageSet) -> None:
        if not folder.is_dir():
            raise UsageError(f"--label-maps {folder}: the folder does not exist")
        self._folder, self._images = folder, images
        self._stems = Counter(PurePosixPath(name).stem for name in images.names)

    def boundaries(self, indices: Sequence[int], model: ModelHandle, size: tuple[int, int]) -> Tensor:
        """Return the share of boundary pixels at each position of a map, (B, rows, columns).

        Labels are resized (nearest neighbor) and cropped like the model's images.

        Raises:
            DataError: an image's label map is missing, cannot be read, or has another size; the message contains the file.
        """
        labels = torch.stack([self._labels(index, model) for index in indices])
        return adaptive_avg_pool2d(boundary(labels, radius=RADIUS).float(), size)

    def _labels(self, index: int, model: ModelHandle) -> Tensor:
        """Return the labels at the model's input size, (H, W)."""
        file = self._file(self._images.names[index])
        try:
            with open_regular(file) as stream, open_image(stream) as opened:
                labels = np.asarray(opened)
        except DAMAGE as error:
            raise DataError(
                f"{file}: cannot be read as a label map ({error}); save it as a PNG of class indices"
            ) from None
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
        host = model.preparation.host
        transforms = eval_transform(host, crop_pct=host.crop_pct, interpolation="nearest").transforms
        image = Image.fromarray(labels.astype(np.int32))
        for transform in transforms[:-1]:  # the last transform converts to a tensor
            image = transform(image)
        return torch.from_numpy(np.array(image))

    def _file(self, name: str) -> Path:
        path = PurePosixPath(name)
        by_path, by_stem = self._folder / path.with_suffix(".png"), self._folder / f"{path.stem}.png"
        unique = self._stems[path.stem] == 1
        for file in (by_path, by_stem) if unique else (by_path,):
            if file.is_file():
                return file
        other = f" (nor {by_stem})" if unique and by_stem != by_path else ""
        raise DataError(f"{by_path}: label map of {name} not found{other}; add a label map for each image")
