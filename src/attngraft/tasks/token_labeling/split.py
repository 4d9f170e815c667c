"""Training images with their label maps, and random crops that record which part of the image they show."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torchvision.transforms.functional as F
from PIL import Image
from timm.data.transforms import RandomResizedCropAndInterpolation
from torch import Tensor
from torchvision.transforms import Compose, RandomHorizontalFlip, RandomVerticalFlip

from attngraft.errors import DataError
from attngraft.tasks.images.sources import in_mode
from attngraft.tasks.images.splits import ImageSplit, LabelledSplit
from attngraft.tasks.seeding import seeded
from attngraft.tasks.task import Split
from attngraft.tasks.token_labeling.maps import LabelMaps


@dataclass
class Crop:
    """Edges of a crop, as shares of the image's width and height, and its flips."""

    left: float = 0.0
    top: float = 0.0
    right: float = 1.0
    bottom: float = 1.0
    hflip: bool = False
    vflip: bool = False

    def tensor(self) -> Tensor:
        """Return the fields in order, (6,)."""
        return torch.tensor([self.left, self.top, self.right, self.bottom, self.hflip, self.vflip])


class TrackedTransform:
    """A `images.transforms.train_transform` that also returns its crop; images are the same, bit for bit.

    Only the crop and flips move labels. Geometric steps of RandAugment (rotation, shear, shift) move the image alone, so
    that labels end up beside their patches.
    """

    def __init__(self, transform: Compose) -> None:
        self.steps = transform.transforms

    def __call__(self, image: Image.Image) -> tuple[Tensor, Crop]:
        crop, result = Crop(), image
        for step in self.steps:
            result = self._apply(step, result, crop)
        return result, crop  # type: ignore[return-value]  # the last step makes a tensor

    def _apply(self, step: Any, image: Image.Image, crop: Crop) -> Image.Image:
        if isinstance(step, RandomResizedCropAndInterpolation):
            top, left, rows, columns = step.get_params(image, step.scale, step.ratio)
            several = isinstance(step.interpolation, tuple | list)
            interpolation = random.choice(step.interpolation) if several else step.interpolation
            crop.left, crop.right = left / image.width, (left + columns) / image.width
            crop.top, crop.bottom = top / image.height, (top + rows) / image.height
            return F.resized_crop(image, top, left, rows, columns, step.size, interpolation)
        if isinstance(step, RandomHorizontalFlip):
            crop.hflip = bool(torch.rand(1) < step.p)
            return F.hflip(image) if crop.hflip else image
        if isinstance(step, RandomVerticalFlip):
            crop.vflip = bool(torch.rand(1) < step.p)
            return F.vflip(image) if crop.vflip else image
        result: Image.Image = step(image)
        return result


class MappedSplit(Split):
    """The examples of `split`; a batch has `image`, `target`, `maps` (B, 2, K, Y, X) and `crop` (B, 6).

    The first call of `order` checks that every image has a map: before training's first step, and never in evaluation.
    """

    def __init__(self, split: ImageSplit, transform: TrackedTransform, maps: LabelMaps) -> None:
        self.split, self.transform, self.maps = split, transform, maps
        self.checked = False

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, index = key
        split, position = self.split, index % len(self)
        image = in_mode(split.images.open(position), split.host.mode)
        with seeded("augment", split.seed, epoch, index):
            result, crop = self.transform(image)
        return (result, split.labels[position]), self.maps.read(self.name(index)), crop.tensor()

    def collate(self, examples: list[Any]) -> dict[str, Tensor]:
        pairs, maps, crops = zip(*examples, strict=True)
        if len(shapes := {tuple(each.shape) for each in maps}) > 1:
            raise DataError(
                f"{self.maps.folder}: label maps of different shapes, {', '.join(map(str, sorted(shapes)))}; all must have "
                "the same rows, columns and numbers of classes"
            )
        return {**self.split.collate(list(pairs)), "maps": torch.stack(maps), "crop": torch.stack(crops)}

    def name(self, index: int) -> str:
        return self.split.name(index)

    def order(self, *, seed: int, epoch: int) -> np.ndarray | None:
        """Return the order of the wrapped split.

        Raises:
            DataError: images without a label map.
        """
        if not self.checked:
            self.maps.check([self.name(index) for index in range(len(self))])
            self.checked = True
        return self.split.order(seed=seed, epoch=epoch)


def with_maps(split: LabelledSplit, maps: LabelMaps) -> MappedSplit:
    """Return `split` with label maps.

    Raises:
        DataError: its transform has no random crop.
    """
    steps = getattr(split.transform, "transforms", ())
    random_crop = any(isinstance(step, RandomResizedCropAndInterpolation) for step in steps)
    if not isinstance(split, ImageSplit) or not random_crop:
        raise DataError("task.token_labels.maps: label maps need random crops; set task.augment.crop to resized")
    return MappedSplit(split, TrackedTransform(cast(Compose, split.transform)), maps)
