"""Suites for images with masks: noise, blur and other changes of the images; their masks stay the same."""

from collections.abc import Mapping

import torch
from torch import Tensor

from attngraft.tasks.images.suites import catalog
from attngraft.tasks.images.suites.pixels import ImagePixels
from attngraft.tasks.suites import Suite
from attngraft.tasks.task import Batch

#: suites that change images one by one
NAMES = ("clean", "occlusion", "noise", "corruptions")


def suites() -> Mapping[str, Suite]:
    """Return the image suites that apply to images of any size; `noise` is that of the CB paper's Table 12."""
    return {name: suite for name, suite in catalog.suites().items() if name in NAMES}


class MaskPixels(ImagePixels):
    """Access to the pixels of evaluation examples (image, label map), whose batches have a list of images."""

    def from_batch(self, batch: Batch) -> Tensor:
        return torch.stack([self._pixels(image) for image in batch["image"]])

    def to_batch(self, batch: Batch, pixels: Tensor) -> Batch:
        return {**batch, "image": list(self.host.normalize_pixels(pixels))}
