"""Where label maps that lie beside images have boundaries, as large as the maps that a model makes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from attngraft.errors import DataError, UsageError
from attngraft.targets.handle import ModelHandle
from attngraft.targets.images import ImageSet
from attngraft.tasks.images.boundaries import boundary
from attngraft.tasks.images.views import fixed_view

RADIUS = 2  #: pixels of the model's input, as `evaluation.boundaries` has it


class LabelMaps:
    """A folder of images of class numbers (PNG, one channel), each with the name of its image.

    The map of `a/1.jpg` is `a/1.png`; or `1.png`, where no other image has this stem.

    Raises:
        UsageError: there is no such folder.
    """

    def __init__(self, folder: Path, album: ImageSet) -> None:
        if not folder.is_dir():
            raise UsageError(f"--label-maps {folder}: there is no such folder")
        self._folder, self._album = folder, album
        self._stems: dict[str, int] = {}
        for name in album.names:
            stem = PurePosixPath(name).stem
            self._stems[stem] = self._stems.get(stem, 0) + 1

    def boundaries(self, places: Sequence[int], subject: ModelHandle, size: tuple[int, int]) -> Tensor:
        """How much of each place of a map of `size` (rows, columns) is boundary, (B, rows, columns) from 0 to 1.

        Labels are resized and cropped as the model's images are, by nearest neighbors.

        Raises:
            DataError: an image has no label map, or one that does not fit it; names the file.
        """
        labels = torch.stack([self._labels(place, subject) for place in places])
        return adaptive_avg_pool2d(boundary(labels, radius=RADIUS).float(), size)

    def _labels(self, place: int, subject: ModelHandle) -> Tensor:
        """(H, W) as the model sees its image."""
        file = self._file(self._album.names[place])
        numbers = _read(file)
        wide, high = self._album.open(place).size
        if numbers.shape != (high, wide):
            raise DataError(
                f"{file}: has {numbers.shape[1]} x {numbers.shape[0]} labels, and its image {wide} x {high} pixels; give a "
                "label for each pixel"
            )
        host = subject.preparation.host
        moves = fixed_view(host, crop_pct=host.crop_pct, interpolation="nearest").transforms[
            :-1
        ]  # the last makes a tensor
        image = Image.fromarray(numbers)
        for move in moves:
            image = move(image)
        return torch.from_numpy(np.array(image))

    def _file(self, name: str) -> Path:
        path = PurePosixPath(name)
        own = self._folder / path.with_suffix(".png")
        if own.is_file():
            return own
        by_stem = self._folder / f"{path.stem}.png"
        if self._stems[path.stem] == 1 and by_stem.is_file():
            return by_stem
        alone = f", nor {by_stem}" if self._stems[path.stem] == 1 and by_stem != own else ""
        raise DataError(f"{own}: there is no label map for {name}{alone}; give one for each image")


def _read(file: Path) -> np.ndarray:
    """(H, W) int32."""
    try:
        with Image.open(file) as image:
            numbers = np.asarray(image)
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise DataError(f"{file}: cannot be read as a label map ({error}); save it as a PNG of class numbers") from None
    if numbers.ndim != 2 or numbers.dtype.kind not in "biu":
        raise DataError(f"{file}: is no label map: give a PNG of one channel (or a palette), a class number a pixel")
    return numbers.astype(np.int32)
