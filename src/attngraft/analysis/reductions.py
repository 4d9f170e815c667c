"""What is kept of attention maps where the maps are too many: running means over images, one map alive at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from attngraft.analysis.measures import entropy, relative_distance, without_prefix
from attngraft.errors import RecordError


class Around(NamedTuple):
    """What a reduction may know of the tokens of a map."""

    prefix: int = 0  #: leading tokens that stand on no grid
    grid: tuple[int, int] | None = None  #: (rows, columns) of the others, or of their window; None: not known
    whole: tuple[int, int] | None = None  #: (rows, columns) of the map


def _distance(weights: Tensor, around: Around) -> Tensor:
    spatial = without_prefix(weights, around.prefix) if around.prefix else weights
    if around.grid is None or spatial.shape[-2:] != (around.grid[0] * around.grid[1],) * 2:
        raise RecordError(
            f"its maps of {weights.shape[-2]} x {weights.shape[-1]} tokens stand on no grid that its host names "
            f"({around.prefix} leading tokens, grid {around.grid}), so that they have no distances; leave 'distance' out"
        )
    return relative_distance(spatial, around.grid, whole=around.whole)


#: name -> what becomes of maps (B, H, Nq, Nk), by image; their mean over all images is kept
REDUCTIONS: Mapping[str, Callable[[Tensor, Around], Tensor]] = {
    "mean": lambda weights, around: weights,
    "entropy": lambda weights, around: entropy(weights),
    "patch_entropy": lambda weights, around: entropy(without_prefix(weights, around.prefix)),
    "distance": _distance,
    "ceiling": lambda weights, around: torch.full(weights.shape[:-1], math.log(weights.shape[-1])),
}


class RunningMean:
    """The mean over the first axis of everything that was added, in float32 or better."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor | None = None

    def add(self, values: Tensor) -> None:
        """
        Raises:
            RecordError: the shape is another one than before.
        """
        found = values.mean(0, dtype=torch.promote_types(values.dtype, torch.float32))
        self.count += len(values)
        if self.mean is None:
            self.mean = found
            return
        if found.shape != self.mean.shape:
            raise RecordError(
                f"its maps have {tuple(found.shape)} numbers, and had {tuple(self.mean.shape)} before; reduce inputs of one "
                "size at a time (`clear` begins anew)"
            )
        self.mean += (found - self.mean) * (len(values) / self.count)
