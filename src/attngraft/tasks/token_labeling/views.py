"""Random views that say which part of the image they show."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
import torchvision.transforms.functional as F
from PIL import Image
from timm.data.transforms import RandomResizedCropAndInterpolation
from torch import Tensor
from torchvision.transforms import Compose, RandomHorizontalFlip, RandomVerticalFlip


@dataclass
class Shown:
    """Edges of the part, as shares of the image's width and height, and whether it is mirrored."""

    left: float = 0.0
    top: float = 0.0
    right: float = 1.0
    bottom: float = 1.0
    mirrored: bool = False
    upside_down: bool = False

    def tensor(self) -> Tensor:
        """(6,): the fields in order."""
        return torch.tensor([self.left, self.top, self.right, self.bottom, self.mirrored, self.upside_down])


def cuts_out(view: object) -> bool:
    """Whether a view takes a random part of the image, which a `TrackedView` of it can tell."""
    return any(isinstance(step, RandomResizedCropAndInterpolation) for step in getattr(view, "transforms", ()))


class TrackedView:
    """The view of `images.views.random_view`, number for number; of its steps only crop and flips move labels.

    What RandAugment moves, it moves in the image alone: under rotation, shear or shift labels lie beside their patches.
    """

    def __init__(self, view: Compose) -> None:
        self.steps = view.transforms

    def __call__(self, image: Image.Image) -> tuple[Tensor, Shown]:
        """What the model is to see, and which part of `image` that is."""
        shown, seen = Shown(), image
        for step in self.steps:
            seen = self._step(step, seen, shown)
        return seen, shown  # type: ignore[return-value]  # the last step makes a tensor

    def _step(self, step: Any, image: Image.Image, shown: Shown) -> Image.Image:
        if isinstance(step, RandomResizedCropAndInterpolation):
            top, left, rows, columns = step.get_params(image, step.scale, step.ratio)
            several = isinstance(step.interpolation, tuple | list)
            interpolation = random.choice(step.interpolation) if several else step.interpolation
            shown.left, shown.right = left / image.width, (left + columns) / image.width
            shown.top, shown.bottom = top / image.height, (top + rows) / image.height
            return F.resized_crop(image, top, left, rows, columns, step.size, interpolation)
        if isinstance(step, RandomHorizontalFlip):
            shown.mirrored = bool(torch.rand(1) < step.p)
            return F.hflip(image) if shown.mirrored else image
        if isinstance(step, RandomVerticalFlip):
            shown.upside_down = bool(torch.rand(1) < step.p)
            return F.vflip(image) if shown.upside_down else image
        found: Image.Image = step(image)
        return found
