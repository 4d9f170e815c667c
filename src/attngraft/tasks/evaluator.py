"""Evaluators, the predecessor of `Task.measure`; still supported for tasks of other packages."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from attngraft.tasks.data import Evaluation, Split


class Evaluator(ABC):
    """Computes an `Evaluation` from the outputs of `Task.predict`; returned by a task's `evaluator(split)`."""

    @abstractmethod
    def update(self, outputs: Mapping[str, Tensor], indices: Tensor) -> None:
        """Add the outputs for the examples at `indices`."""

    @abstractmethod
    def result(self) -> Evaluation: ...


class CollectingEvaluator(Evaluator):
    """Stores the outputs of all examples, in the split's order; `result` can call `collected()`."""

    def __init__(self, split: Split) -> None:
        self._outputs: Mapping[str, np.ndarray] = {}

    def update(self, outputs: Mapping[str, Tensor], indices: Tensor) -> None:
        self._outputs = {name: tensor.numpy() for name, tensor in outputs.items()}  # called once, with all examples

    def collected(self) -> Mapping[str, np.ndarray]:
        """Return a mapping from output name to array (N, ...)."""
        return self._outputs
