"""Gathering what a task predicts of each example, once each, in the split's order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from attngraft.errors import TrainingError
from attngraft.tasks.task import Evaluator, Split


class CollectingEvaluator(Evaluator):
    """Keeps every output of `Task.predict`, one row per example; `result` of a subclass starts with `collected()`."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self._seen = np.zeros(len(split), dtype=bool)
        self._kept: dict[str, np.ndarray] = {}

    def update(self, outputs: Mapping[str, Tensor], indices: Tensor) -> None:
        positions = indices.cpu().numpy()
        if len(positions) and not 0 <= positions.min() <= positions.max() < len(self._split):
            raise TrainingError(
                f"evaluation: indices {positions.min()} to {positions.max()} of {len(self._split)} examples"
            )
        first, rows = np.unique(positions, return_index=True)
        rows, first = rows[~self._seen[first]], first[~self._seen[first]]
        for name, tensor in outputs.items():
            values = tensor.detach().cpu().numpy()
            if name not in self._kept:
                self._kept[name] = np.zeros((len(self._split), *values.shape[1:]), dtype=values.dtype)
            self._kept[name][first] = values[rows]
        self._seen[first] = True

    def collected(self) -> Mapping[str, np.ndarray]:
        """Output name to (N, ...).

        Raises:
            TrainingError: some examples were never evaluated.
        """
        if not self._seen.all():
            missing = np.flatnonzero(~self._seen)
            names = ", ".join(self._split.name(int(index)) for index in missing[:3])
            raise TrainingError(f"evaluation: {len(missing)} of {len(self._split)} examples are missing ({names}, ...)")
        return self._kept
