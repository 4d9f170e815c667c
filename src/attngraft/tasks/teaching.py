"""What a task knows of learning from a teacher: another model of the same data, which is asked about every batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor


class Teaching(ABC):
    """Made by `Task.teaching` once the data are open."""

    @abstractmethod
    def to_teacher(self, batch: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The arguments with which the teacher is called on a batch: as `Task.to_model`, in the form that it expects.

        A batch of training comes as `Task.prepare` left it, so that the teacher sees what the student sees.
        """

    @abstractmethod
    def loss(self, outputs: Any, taught: Any, *, temperature: float, hard: bool) -> Tensor:
        """How far the student is from the teacher: a scalar, the mean over the batch.

        Args:
            outputs: the student's.
            taught: the teacher's, of the same batch.
            temperature: divides both models' logits.
            hard: follow what the teacher decides instead of its probabilities.
        """
