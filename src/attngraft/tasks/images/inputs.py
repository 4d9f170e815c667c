"""What the host expects of an image: size, mode, normalization, and how evaluation crops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from attngraft.errors import ConfigError

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # timm's default mean and deviation


@dataclass(frozen=True, kw_only=True)
class HostInput:
    """Read from timm's model data configuration."""

    channels: int
    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    crop_pct: float
    crop_mode: str

    @classmethod
    def from_model(cls, config: Mapping[str, Any]) -> HostInput:
        """From `timm.data.resolve_model_data_config`; what is missing takes timm's default.

        Raises:
            ConfigError: a number of channels other than 1 or 3.
        """
        channels, height, width = (int(number) for number in config.get("input_size", (3, 224, 224)))
        if channels not in (1, 3):
            raise ConfigError(
                f"host: takes {channels} input channels; images have 1 (gray) or 3 (RGB): set host.args.in_chans"
            )
        return cls(
            channels=channels,
            height=height,
            width=width,
            mean=_per_channel(config.get("mean", _IMAGENET[0]), channels),
            std=_per_channel(config.get("std", _IMAGENET[1]), channels),
            interpolation=config.get("interpolation", "bicubic"),
            crop_pct=float(config.get("crop_pct") or 0.875),
            crop_mode=config.get("crop_mode") or "center",
        )

    @property
    def mode(self) -> str:
        """Pillow's name for the host's channels."""
        return "L" if self.channels == 1 else "RGB"

    def holds(self, size: tuple[int, int]) -> bool:
        """Whether an image of `size` (width, height) is no larger than the input on either side."""
        return size[0] <= self.width and size[1] <= self.height

    def normalize(self, images: Tensor) -> Tensor:
        """Bytes (..., C, H, W) to (x / 255 - mean) / std, float32."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        floats = torch.empty(images.shape)  # contiguous, whatever the strides of the bytes
        return floats.copy_(images).div_(255).sub_(mean).div_(std)

    def tensor(self, image: Image.Image) -> Tensor:
        """An image in the host's mode to (C, H, W), normalized: torchvision's numbers in half of its passes over memory."""
        pixels = torch.from_numpy(np.array(image))
        return self.normalize(pixels.permute(2, 0, 1) if pixels.ndim == 3 else pixels[None])


def _per_channel(values: Any, channels: int) -> tuple[float, ...]:
    """One number per channel: gray takes the mean of RGB's, RGB repeats gray's."""
    numbers = tuple(float(value) for value in values)
    return numbers if len(numbers) == channels else (sum(numbers) / len(numbers),) * channels
