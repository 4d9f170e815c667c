"""Preparation of images, examples and batches for the host: size, mode and normalization."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from attngraft.errors import ConfigError
from attngraft.suggest import quoted
from attngraft.tasks.images.config import LARGEST_SIDE
from attngraft.tasks.task import Batch

Example = tuple[Tensor, Any]  #: image, and its label: a class index, or a 0/1 row with one entry per class

_SMALLEST_CROP, _LARGEST_CROP = 0.01, 10.0
_FARTHEST = 1000  #: largest mean or standard deviation of pixels from 0 to 1; those of all models of timm are at most 1
_CROP_MODES = ("center", "squash", "border")  #: of timm
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # timm's default mean and std


class Mix(Protocol):
    """Mix images (B, C, H, W) and their targets within a batch; the result is determined by (seed, epoch, step)."""

    def __call__(self, images: Tensor, target: Tensor, *, epoch: int, step: int) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, kw_only=True)
class HostInput:
    """The part of timm's model data configuration that describes an input image."""

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
        """Create from the result of `timm.data.resolve_model_data_config`; missing keys take timm's defaults.

        Raises:
            ConfigError: the host takes no images, the number of channels is neither 1 nor 3, or the size, the normalization
                or the crop is invalid.
        """
        if (kind := config.get("kind", "images")) != "images":
            other = ", or add --task text_classification for texts" if kind == "text" else ""
            raise ConfigError(
                f"host: takes {kind}, but this task requires images; use an image model, such as vit_tiny_patch16_224 or "
                f"torchvision:vit_b_16{other}"
            )
        size = config.get("input_size", (3, 224, 224))
        if not _are_numbers(size) or len(size) != 3 or not 1 <= min(size) <= max(size) <= LARGEST_SIDE:
            raise ConfigError(
                f"host: input_size must be channels, height and width, of at most {LARGEST_SIDE:,}, not {quoted(size)}; "
                "correct it"
            )
        channels, height, width = map(int, size)
        if channels not in (1, 3):
            raise ConfigError(
                f"host: has {channels} input channels, but images have 1 (gray) or 3 (RGB); use --host-arg in_chans=3"
            )
        crop_pct, crop_mode = config.get("crop_pct"), config.get("crop_mode") or "center"
        crop_pct = 0.875 if crop_pct is None else float(crop_pct)
        if not _SMALLEST_CROP <= crop_pct <= _LARGEST_CROP:
            raise ConfigError(
                f"host: crop_pct must be from {_SMALLEST_CROP} to {_LARGEST_CROP}, got {crop_pct:g}; correct it"
            )
        if crop_mode not in _CROP_MODES:
            raise ConfigError(f"host: crop_mode must be {', '.join(_CROP_MODES)}, not {quoted(crop_mode)}; correct it")
        mean, std = config.get("mean", _IMAGENET[0]), config.get("std", _IMAGENET[1])
        given = all(_are_numbers(each) and len(each) in (1, 3) for each in (mean, std))
        if not (given and min(std) >= 1 / _FARTHEST and max(*std, *map(abs, mean)) <= _FARTHEST):
            raise ConfigError(
                f"host: mean {quoted(mean)} and std {quoted(std)} must be 1 or 3 numbers each, for pixels from 0 to 1, and "
                f"std positive (none beyond {_FARTHEST:,}, no std below {1 / _FARTHEST}); correct them"
            )
        return cls(
            channels=channels,
            height=height,
            width=width,
            mean=_per_channel(mean, channels),
            std=_per_channel(std, channels),
            interpolation=config.get("interpolation", "bicubic"),
            crop_pct=crop_pct,
            crop_mode=crop_mode,
        )

    def facts(self) -> dict[str, Any]:
        """Return size, normalization and interpolation, JSON-ready."""
        return {
            "size": [self.channels, self.height, self.width],
            "mean": list(self.mean),
            "std": list(self.std),
            "interpolation": self.interpolation,
        }

    @property
    def mode(self) -> str:
        """Pillow's image mode for the host's channels: L or RGB."""
        return "L" if self.channels == 1 else "RGB"

    def holds(self, size: tuple[int, int]) -> bool:
        """Return whether an image of `size` (width, height) is no wider and no taller than the input."""
        return size[0] <= self.width and size[1] <= self.height

    def normalize(self, images: Tensor) -> Tensor:
        """Return (x / 255 - mean) / std of uint8 images (..., C, H, W) as float32, bit-identical to torchvision."""
        mean, std = _on_device(self.mean, images.device), _on_device(self.std, images.device)
        floats = torch.empty(images.shape, device=images.device)  # contiguous for any strides of `images`
        one_by_one = images.ndim == 4 and images.device.type == "cpu"  # a single image fits the CPU's cache
        for part, pixels in zip(floats, images, strict=True) if one_by_one else [(floats, images)]:
            part.copy_(pixels).div_(255).sub_(mean).div_(std)
        return floats

    def normalize_pixels(self, pixels: Tensor) -> Tensor:
        """Return (x - mean) / std of images (..., C, H, W) with values from 0 to 1; differentiable."""
        return (pixels - _on_device(self.mean, pixels.device)) / _on_device(self.std, pixels.device)

    def pixels_of(self, normalized: Tensor) -> Tensor:
        """Invert `normalize` and `normalize_pixels`; return values from 0 to 1."""
        return normalized * _on_device(self.std, normalized.device) + _on_device(self.mean, normalized.device)


class ImageBatches:
    """Normalization and mixing of batches `{"image": (B, C, H, W), "target": ...}` on the model's device.

    Data loading processes send uint8, a quarter of the size of floats. Float images are already normalized: random erasing
    fills in normalized values.

    Args:
        host: the host's input.
        mix: mixing of training batches; None: no mixing.
    """

    def __init__(self, host: HostInput, mix: Mix | None = None) -> None:
        self._host, self._mix = host, mix

    def prepare(self, batch: Batch, *, epoch: int, step: int) -> Batch:
        """Normalize images, then mix them; see `Task.prepare`."""
        image, target = self._normalized(batch["image"]), batch["target"]
        if self._mix is not None:
            image, target = self._mix(image, target, epoch=epoch, step=step)
        return {**batch, "image": image, "target": target}

    def to_model(self, batch: Batch) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the normalized images as the model's arguments; see `Task.to_model`."""
        return (self._normalized(batch["image"]),), {}

    def _normalized(self, images: Tensor) -> Tensor:
        return self._host.normalize(images) if images.dtype == torch.uint8 else images


def image_to_tensor(image: Image.Image) -> Tensor:
    """Return an image in mode L or RGB as uint8 (C, H, W)."""
    array = np.asarray(image)
    return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)) if array.ndim == 3 else array[None].copy())


@lru_cache(maxsize=16)
def _on_device(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return `values` as (C, 1, 1); cached, because a copy to the device would synchronize."""
    return torch.tensor(values, device=device).view(-1, 1, 1)


def _are_numbers(values: Any) -> bool:
    return (
        isinstance(values, list | tuple)
        and len(values) > 0
        and all(isinstance(each, int | float) and math.isfinite(each) for each in values)
    )


def _per_channel(values: Any, channels: int) -> tuple[float, ...]:
    """Return one number per channel: the mean of RGB for gray, or the gray value repeated for RGB."""
    numbers = tuple(float(value) for value in values)
    return numbers if len(numbers) == channels else (sum(numbers) / len(numbers),) * channels
