"""Batches of images where the model is: bytes become what it takes, then images are mixed.

Loading processes send bytes, a quarter of what floats take on the way to the trainer and on to the device. Where views
end in floats (random erasing draws them), these come as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.task import Batch


class Mix(Protocol):
    """Mixes images (B, C, H, W) and their targets with one another, as a function of (seed, epoch, step)."""

    def __call__(self, images: Tensor, target: Tensor, *, epoch: int, step: int) -> tuple[Tensor, Tensor]: ...


class ImageBatches:
    """What tasks on images do to a batch, `{"image": (B, C, H, W), "target": ...}`, on the model's device.

    Args:
        host: how it wants images normalized.
        mix: mixes training batches; None: they stay as they are.
    """

    def __init__(self, host: HostInput, mix: Mix | None = None) -> None:
        self._host, self._mix = host, mix

    def prepare(self, batch: Batch, *, epoch: int, step: int) -> Batch:
        """As `Task.prepare`: images normalized, then mixed."""
        image, target = self._ready(batch["image"]), batch["target"]
        if self._mix is not None:
            image, target = self._mix(image, target, epoch=epoch, step=step)
        return {**batch, "image": image, "target": target}

    def to_model(self, batch: Batch) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """As `Task.to_model`: the normalized images."""
        return (self._ready(batch["image"]),), {}

    def _ready(self, images: Tensor) -> Tensor:
        return self._host.normalize(images) if images.dtype == torch.uint8 else images
