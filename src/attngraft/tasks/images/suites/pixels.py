"""Read and replace the pixels of examples and batches, as values from 0 to 1, for suites."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attngraft.tasks.images.inputs import Example, HostInput
from attngraft.tasks.images.suites.changes import AttackTarget
from attngraft.tasks.suites import BatchChange, BatchTarget, ExampleAccess
from attngraft.tasks.task import Batch


class PixelAccess(ExampleAccess):
    """Access to the images of examples and batches as values from 0 to 1, which conditions change."""

    color: tuple[float, ...]  #: mean color: the value of each channel that normalization maps to 0

    @abstractmethod
    def from_example(self, example: Any) -> Tensor:
        """Return the image of an evaluation example, (C, H, W) float32."""

    @abstractmethod
    def to_example(self, example: Any, pixels: Tensor) -> Any:
        """Return the example with `pixels` as its image; the result must collate with unchanged examples."""

    @abstractmethod
    def from_batch(self, batch: Batch) -> Tensor:
        """Return the images of an evaluation batch, (B, C, H, W) float32."""

    @abstractmethod
    def to_batch(self, batch: Batch, pixels: Tensor) -> Batch:
        """Return the batch with its images replaced by `pixels`; differentiable."""

    def change_example(self, example: Any, change: Callable[..., Any], generator: torch.Generator) -> Any:
        return self.to_example(example, change(self.from_example(example), generator, color=self.color))

    def change_batch(self, batch: Batch, change: BatchChange, target: BatchTarget, *, noise_seed: int) -> Batch:
        of_pixels = AttackTarget(
            model=target.model,
            outputs=lambda pixels: target.outputs(self.to_batch(batch, pixels)),
            losses=lambda pixels: target.losses(self.to_batch(batch, pixels)),
            indices=target.indices,
            color=self.color,
            report=target.report,
        )
        return self.to_batch(batch, change(self.from_batch(batch), of_pixels, noise_seed=noise_seed))


class ImagePixels(PixelAccess):
    """Access to the pixels of examples (image, label) and batches, uint8 or normalized for the host."""

    def __init__(self, host: HostInput) -> None:
        self.host, self.color = host, host.mean

    def from_example(self, example: Example) -> Tensor:
        return self._pixels(example[0])

    def to_example(self, example: Example, pixels: Tensor) -> Example:
        return self.host.normalize_pixels(pixels), example[1]

    def from_batch(self, batch: Batch) -> Tensor:
        return self._pixels(batch["image"])

    def to_batch(self, batch: Batch, pixels: Tensor) -> Batch:
        return {**batch, "image": self.host.normalize_pixels(pixels)}

    def _pixels(self, images: Tensor) -> Tensor:
        if images.dtype == torch.uint8:
            return images.float() / 255
        return self.host.pixels_of(images).clamp(0, 1)
