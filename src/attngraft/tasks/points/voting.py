"""Predictions averaged over scaled copies of a cloud."""

from collections.abc import Callable

import torch
from torch import Tensor

_SCALE = (0.85, 1.15)


def mean_probabilities(probabilities: Callable[[Tensor], Tensor], points: Tensor, *, votes: int) -> Tensor:
    """Return the mean of the probabilities of clouds and of scaled copies, which are the same for all clouds.

    The first vote is the cloud itself; each other is scaled by a factor in (0.85, 1.15) along each axis. Source: PointMLP's
    code, which repeats this with other factors and reports the best test result; that is not offered here.

    Args:
        probabilities: (B, N, channels) to probabilities, of any shape.
        points: (B, N, channels).
    """
    random = torch.Generator().manual_seed(0)
    found = probabilities(points)
    for _ in range(votes - 1):
        low, high = _SCALE
        scale = torch.ones(points.shape[-1])
        scale[:3] = low + (high - low) * torch.rand(3, generator=random)
        found = found + probabilities(points * scale.to(points))
    return found / votes
