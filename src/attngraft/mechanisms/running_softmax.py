"""Softmax over keys times values, accumulated over pieces of the keys."""

from typing import Any

import torch
from torch import Tensor


class RunningSoftmax:
    """Softmax over keys times the values, accumulated piece by piece, as in flash attention.

    Args:
        masked: whether scores may be -inf; a row whose scores are all -inf has output 0.
    """

    def __init__(self, *, masked: bool = False) -> None:
        self._masked = masked
        self._largest: Any = None  # maximum over the pieces so far, (n, rows, 1)
        self._sums: Any = None  # sum of exp(S - largest), (n, rows, 1)
        self._weighted: Any = None  # sum of exp(S - largest) times the values, (n, rows, width)

    def add(self, scores: Tensor, values: Tensor, *, buffer: Tensor) -> None:
        """Add scores (n, rows, keys) and values (n, keys, width) of some keys; `buffer` is like `scores`."""
        largest, before = largest_score(scores, -1, masked=self._masked), self._largest
        self._largest = largest if before is None else torch.maximum(largest, before)
        weights = torch.sub(scores, self._largest, out=buffer).exp_()
        sums = weights.sum(-1, keepdim=True)
        if before is not None:
            rescale = before.sub_(self._largest).exp_()
            sums = self._sums.mul_(rescale).add_(sums)
            self._weighted.mul_(rescale)
        self._sums, self._weighted = sums, add_product(self._weighted, weights, values)

    def output(self) -> Tensor:
        """Return the weighted values (n, rows, width)."""
        return self._weighted.div_(as_divisor(self._sums, masked=self._masked))

    def log_sums(self) -> Tensor:
        """Return log sum over keys of exp(S) (n, rows, 1), finite for fully masked rows. Call `output` first."""
        return self._sums.log_().add_(self._largest)


def largest_score(scores: Tensor, dim: int, *, masked: bool) -> Tensor:
    """Return the largest score along `dim`, kept at size 1; finite for fully masked lines."""
    largest = scores.amax(dim, keepdim=True)
    return largest.clamp_(min=torch.finfo(scores.dtype).min) if masked else largest


def as_divisor(sums: Tensor, *, masked: bool) -> Tensor:
    """Return sums of exp(S - largest), in place, with 1 for fully masked lines, whose sum is 0."""
    return sums.clamp_(min=1) if masked else sums


def add_product(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """Return total + left @ right, in place unless `total` is None."""
    # not `baddbmm_`, which FLOP counters do not count
    return torch.bmm(left, right) if total is None else torch.baddbmm(total, left, right, out=total)
