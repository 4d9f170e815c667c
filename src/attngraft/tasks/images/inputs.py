"""What the host expects of an image: size, mode, normalization, and how evaluation crops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
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
        """Bytes (..., C, H, W) to (x / 255 - mean) / std, float32, on their device: torchvision's numbers."""
        mean, std = _on_device(self.mean, images.device), _on_device(self.std, images.device)
        floats = torch.empty(images.shape, device=images.device)  # contiguous, whatever the strides of the bytes
        one_by_one = images.ndim == 4 and images.device.type == "cpu"  # an image at a time stays in the cache
        for part, pixels in zip(floats, images, strict=True) if one_by_one else [(floats, images)]:
            part.copy_(pixels).div_(255).sub_(mean).div_(std)
        return floats

    def normalize_pixels(self, pixels: Tensor) -> Tensor:
        """Floats between 0 and 1 (..., C, H, W) to (x - mean) / std; gradients go through."""
        return (pixels - _on_device(self.mean, pixels.device)) / _on_device(self.std, pixels.device)

    def pixels_of(self, normalized: Tensor) -> Tensor:
        """The way back from what `normalize` or `normalize_pixels` gave."""
        return normalized * _on_device(self.std, normalized.device) + _on_device(self.mean, normalized.device)


def pixels(image: Image.Image) -> Tensor:
    """The bytes (C, H, W) of an image in one of a host's modes."""
    array = np.asarray(image)
    return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)) if array.ndim == 3 else array[None].copy())


@lru_cache(maxsize=16)
def _on_device(values: tuple[float, ...], device: torch.device) -> Tensor:
    """(C, 1, 1); kept, as sending numbers to a device would wait for it."""
    return torch.tensor(values, device=device).view(-1, 1, 1)


def _per_channel(values: Any, channels: int) -> tuple[float, ...]:
    """One number per channel: gray takes the mean of RGB's, RGB repeats gray's."""
    numbers = tuple(float(value) for value in values)
    return numbers if len(numbers) == channels else (sum(numbers) / len(numbers),) * channels
