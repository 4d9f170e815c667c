"""Images of a host's input as pixels between 0 and 1."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from attngraft.errors import ConfigError
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.splits import Example, LabelledSplit
from attngraft.tasks.probe import Pixels
from attngraft.tasks.task import Batch, Split


class ImagePixels(Pixels):
    """Of examples (image, label) and batches `{"image": ..., "target": ...}`: bytes, or what the host has normalized."""

    def __init__(self, host: HostInput) -> None:
        self.host, self.color = host, host.mean

    def of_example(self, example: Example) -> Tensor:
        return self._pixels(example[0])

    def into_example(self, example: Example, pixels: Tensor) -> Example:
        return self.host.normalize_pixels(pixels), example[1]

    def of_batch(self, batch: Batch) -> Tensor:
        return self._pixels(batch["image"])

    def into_batch(self, batch: Batch, pixels: Tensor) -> Batch:
        return {**batch, "image": self.host.normalize_pixels(pixels)}

    def _pixels(self, images: Tensor) -> Tensor:
        if images.dtype == torch.uint8:
            return images.float() / 255
        return self.host.pixels_of(images).clamp(0, 1)


def image_part(split: Split, indices: np.ndarray) -> Split:
    """`Probe.part` of labelled images.

    Raises:
        ConfigError: a split of another kind.
    """
    if not isinstance(split, LabelledSplit):
        raise ConfigError(f"task: takes parts of its own splits, not of a {type(split).__name__}")
    return split.part(indices)


def one_belief(columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """`Task.beliefs` of one label per image: the confidence in what is predicted, and whether it is right."""
    return columns["confidence"][:, None], (columns["predicted"] == columns["target"])[:, None]


def many_beliefs(columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """`Task.beliefs` of several labels per image: the probability of every label, and whether it is there."""
    return 1 / (1 + np.exp(-columns["logits"].astype(np.float64))), columns["target"] > 0
