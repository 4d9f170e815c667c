"""What evaluations beyond clean accuracy need of a task: its examples as pixels, and what to keep of predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from attngraft.tasks.task import Batch, Split


class Pixels(ABC):
    """A task's examples and batches as images between 0 and 1, before normalization. Goes to loading processes."""

    color: tuple[float, ...]  #: of each channel, what normalization makes 0: the mean color

    @abstractmethod
    def of_example(self, example: Any) -> Tensor:
        """The image of an evaluation example, (C, H, W) float32."""

    @abstractmethod
    def into_example(self, example: Any, pixels: Tensor) -> Any:
        """The example with another image, to be collated with its like."""

    @abstractmethod
    def of_batch(self, batch: Batch) -> Tensor:
        """The images of an evaluation batch, (B, C, H, W) float32."""

    @abstractmethod
    def into_batch(self, batch: Batch, pixels: Tensor) -> Batch:
        """The batch with other images; gradients go through."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What `Task.probe` returns, once the data are loaded."""

    pixels: Pixels
    losses: Callable[[Any, Batch], Tensor]  #: of (the model's outputs, batch): evaluation's loss by example, (B,)
    columns: tuple[str, ...]  #: those of `Predictions.arrays` that are kept for each example
    part: Callable[
        [Split, np.ndarray], Split
    ]  #: of (a split, indices): these of its examples alone, evaluated as in it
