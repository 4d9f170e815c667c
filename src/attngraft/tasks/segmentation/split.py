"""Splits of images with masks, and the joint augmentation of training examples."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from attngraft.errors import DataError
from attngraft.tasks.images.boundaries import IGNORED
from attngraft.tasks.images.inputs import HostInput, image_to_tensor
from attngraft.tasks.images.recoloring import recolored
from attngraft.tasks.images.stored import stored_bytes
from attngraft.tasks.seeding import generator
from attngraft.tasks.segmentation.config import MaskAugmentConfig
from attngraft.tasks.segmentation.masks import MaskedImages
from attngraft.tasks.task import Batch, Split

_TRIES = 10  #: number of crops that are drawn if one class dominates

Example = tuple[Tensor, Tensor]  #: image (3, H, W) and label map (H, W), both uint8


class MaskSplit(Split):
    """Images with masks.

    Args:
        images: the images.
        host: the host's input, whose mean color fills the image outside of its borders.
        augment: training augmentation, as a function of (seed, epoch, index); None: images and masks as they are.
        seed: seed of the augmentation.
    """

    def __init__(
        self, images: MaskedImages, *, host: HostInput, augment: MaskAugmentConfig | None = None, seed: int = 0
    ) -> None:
        self.images, self._host, self._augment, self._seed = images, host, augment, seed
        self._mode, self._fill = host.mode, [round(255 * value) for value in host.mean]

    def take(self, indices: np.ndarray) -> MaskSplit:
        """Return the split of some of the images."""
        return MaskSplit(self.images.take(indices), host=self._host, augment=self._augment, seed=self._seed)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: tuple[int, int]) -> Example:
        epoch, index = key
        image = image_to_tensor(self.images.image(index).convert(self._mode))
        label = torch.from_numpy(self.images.label(index))
        if image.shape[-2:] != label.shape:
            raise DataError(
                f"{self.images.masks[index]}: {label.shape[1]} x {label.shape[0]}, but its image is {image.shape[2]} x "
                f"{image.shape[1]}; make them the same size"
            )
        if self._augment is None:
            return image, label
        return augmented(image, label, self._augment, fill=self._fill, random=generator(self._seed, epoch, index))

    def collate(self, examples: list[Example]) -> Batch:
        """Return `image` and `label`: (B, 3, H, W) and (B, H, W) in training, otherwise lists, as sizes differ."""
        images, labels = (list(each) for each in zip(*examples, strict=True))
        if self._augment is None:
            return {"image": images, "label": labels}
        return {"image": torch.stack(images), "label": torch.stack(labels)}

    def name(self, index: int) -> str:
        return self.images.names[index]

    def fingerprint(self) -> bytes:
        found = hashlib.sha256("\n".join(self.images.labels.classes).encode())
        for mask in self.images.masks:
            found.update(f"{stored_bytes(mask)}\n".encode())
        return found.digest()


def augmented(
    image: Tensor, label: Tensor, config: MaskAugmentConfig, *, fill: list[int], random: np.random.Generator
) -> Example:
    """Scale, crop, flip and recolor an image and its label map.

    Args:
        image: (C, H, W) uint8.
        label: (H, W) uint8.
        fill: color outside of the image; labels there are ignored.
    """
    pair: list[Any] = [tv_tensors.Image(image), tv_tensors.Mask(label[None])]
    height, width = image.shape[-2:]
    factor = float(np.exp(random.uniform(*np.log(config.scale))))
    factor *= 1.0 if config.size is None else config.size / min(height, width)
    size = [max(2, round(height * factor)), max(1, round(width * factor))]  # torch fails to resize to a single pixel
    if size != [height, width]:
        pair = [F.resize(each, size, antialias=True) for each in pair]
    rows, columns = config.crop
    below, right = max(0, rows - size[0]), max(0, columns - size[1])
    if below or right:
        pair = [
            F.pad(each, [0, 0, right, below], fill=value) for each, value in zip(pair, (fill, IGNORED), strict=True)
        ]
    free = size[0] + below - rows, size[1] + right - columns
    for _ in range(_TRIES):
        top, left = (int(random.integers(side + 1)) for side in free)
        cropped = F.crop(pair[1], top, left, rows, columns)
        if config.max_share >= 1 or not any(free):
            break
        counts = torch.bincount(cropped.reshape(-1), minlength=256)[:IGNORED]
        if len(counts.nonzero()) and counts.max() <= config.max_share * counts.sum():
            break
    image = F.crop(pair[0], top, left, rows, columns)
    if random.random() < config.hflip:
        image, cropped = F.horizontal_flip(image), F.horizontal_flip(cropped)
    if config.photometric:
        image = recolored(image, random)
    return image.as_subclass(Tensor), cropped.as_subclass(Tensor)[0]
