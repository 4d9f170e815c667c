"""Suites for images with masks: noise, blur and other changes of the images; their masks stay the same."""

from collections.abc import Mapping

import torch
from torch import Tensor

from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.suites import catalog
from attngraft.tasks.images.suites.pixels import PixelAccess
from attngraft.tasks.segmentation.split import Example
from attngraft.tasks.suites import Suite
from attngraft.tasks.task import Batch

#: suites that change images one by one
NAMES = ("clean", "occlusion", "noise", "corruptions")


def suites() -> Mapping[str, Suite]:
    """Return the image suites that apply to images of any size; `noise` is that of the CB paper's Table 12."""
    return {name: suite for name, suite in catalog.suites().items() if name in NAMES}


class MaskPixels(PixelAccess):
    """Access to the pixels of evaluation examples (image, label map); changed images are normalized for the host."""

    def __init__(self, host: HostInput) -> None:
        self.host, self.color = host, host.mean

    def from_example(self, example: Example) -> Tensor:
        return self._pixels(example[0])

    def to_example(self, example: Example, pixels: Tensor) -> Example:
        return self.host.normalize_pixels(pixels), example[1]

    def from_batch(self, batch: Batch) -> Tensor:
        return torch.stack([self._pixels(image) for image in batch["image"]])

    def to_batch(self, batch: Batch, pixels: Tensor) -> Batch:
        return {**batch, "image": list(self.host.normalize_pixels(pixels))}

    def _pixels(self, image: Tensor) -> Tensor:
        return image.float() / 255 if image.dtype == torch.uint8 else self.host.pixels_of(image).clamp(0, 1)
