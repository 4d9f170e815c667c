"""Score matrices group by group, each group small enough for the cache, and the two softmaxes of a group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from attngraft.dispatch.formula import accurate

#: numbers in the score matrices of one group, per thread; at least one matrix
NUMBERS = 2**18


class Group(NamedTuple):
    """Some heads of some images, taken as n = images * heads matrices."""

    images: slice
    heads: slice

    def of(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The group's part of (B, H, ...), as (n, ...)."""
        part = tensor[self.images, self.heads].flatten(0, 1)
        return part if dtype is None else part.to(dtype)

    def put(self, tensor: Tensor, values: Tensor) -> None:
        """Write `values` (n, ...) to the group's part of (B, H, ...)."""
        part = tensor[self.images, self.heads]
        part.copy_(values.view(part.shape))

    @property
    def counts(self) -> tuple[int, int]:
        """Images and heads."""
        return self.images.stop - self.images.start, self.heads.stop - self.heads.start


class Scores:
    """S = scale q k^T + bias, never whole; `bias` (b, H or 1, Nq, Nk) and `visible` (B, H, Nq, Nk) as the operations say."""

    def __init__(self, q: Tensor, k: Tensor, *, bias: Tensor | None, visible: Tensor | None, scale: float) -> None:
        self.q, self.k, self.bias, self.visible, self.scale = q, k, bias, visible, scale
        self.dtype = accurate(q)
        self._size = (q.shape[2], k.shape[2])
        fitting = _numbers(q.device) // (self._size[0] * self._size[1])
        self.groups = list(_groups(q.shape[0], q.shape[1], fitting, 1 if bias is None else len(bias)))

    @property
    def masked(self) -> bool:
        """Whether a pair may be hidden."""
        return self.bias is not None or self.visible is not None

    def buffer(self) -> Tensor:
        """Room for the matrices of the largest group, for groups to take turns with: (n, Nq, Nk)."""
        most = max(images * heads for images, heads in (group.counts for group in self.groups))
        return self.q.new_empty(most, *self._size, dtype=self.dtype)

    def queries(self, group: Group) -> Tensor:
        """scale q (n, Nq, dk)."""
        return group.of(self.q, self.dtype) * self.scale

    def of(self, group: Group, queries: Tensor, buffer: Tensor) -> Tensor:
        """The scores of a group (n, Nq, Nk), written to `buffer`; -inf where a pair is hidden."""
        out = buffer[: len(queries)]
        torch.bmm(queries, group.of(self.k, self.dtype).mT, out=out)
        if self.bias is not None:
            self._by_bias(group, out).add_(self._bias(group, self.bias))
        if self.visible is not None:
            out.masked_fill_(~group.of(self.visible), float("-inf"))
        return out

    def over_keys(self, scores: Tensor, buffer: Tensor) -> Tensor:
        """The softmax of a group's scores over keys, written to `buffer`; 0 where all is hidden."""
        found = torch.softmax(scores, -1, out=buffer[: len(scores)])
        # A query that sees nothing is NaN from end to end: to look at one key is cheap, to look at all is not.
        if self.masked and (found.device.type != "cpu" or found[..., 0].isnan().any()):
            found.masked_fill_((scores == float("-inf")).all(-1, keepdim=True), 0)
        return found

    def largest_of_keys(self, scores: Tensor) -> Tensor:
        """Each key's largest score (n, 1, Nk); finite where all is hidden, so that exp(S - largest) is 0 there."""
        found = scores.amax(-2, keepdim=True)
        return found.clamp_(min=torch.finfo(self.dtype).min) if self.masked else found

    def one_over(self, sums: Tensor) -> Tensor:
        """1 / sums of exp(S - largest) (n, Nk, 1). They are at least 1, but 0 where all is hidden: no 0 / 0 there."""
        return (sums.clamp_(min=1) if self.masked else sums).reciprocal_().unsqueeze(-1)

    def gather(self, group: Group, gradient: Tensor, to_bias: Tensor) -> None:
        """Add the gradient of the group's scores to that of the bias."""
        part = self._bias(group, to_bias)
        part.add_(self._by_bias(group, gradient).sum(0).sum_to_size(part.shape))

    def _bias(self, group: Group, bias: Tensor) -> Tensor:
        """The group's part of the bias: (images, or b if these are more, H or 1, Nq, Nk)."""
        images = group.counts[0]
        if images < len(bias):
            start = group.images.start % len(bias)
            bias = bias[start : start + images]
        return bias if bias.shape[1] == 1 else bias[:, group.heads]

    def _by_bias(self, group: Group, matrices: Tensor) -> Tensor:
        """(n, Nq, Nk) as (r, images or b, heads, Nq, Nk): the last four go with `_bias`."""
        images, heads = group.counts
        period = images if self.bias is None else min(images, len(self.bias))
        return matrices.view(-1, period, heads, *self._size)


def _numbers(device: torch.device) -> int:
    return NUMBERS * torch.get_num_threads() if device.type == "cpu" else 2**26  # no cache to stay in there


def _groups(batch: int, heads: int, fitting: int, period: int) -> Iterator[Group]:
    """As many images as fit, part of one period of the bias or several whole ones; else some heads of one image."""
    if fitting >= heads:
        most = min(batch, fitting // heads)
        step = next(count for count in range(most, 0, -1) if period % count == 0 or count % period == 0)
        for start in range(0, batch, step):
            yield Group(slice(start, min(start + step, batch)), slice(0, heads))
        return
    rounds = -(-heads // max(fitting, 1))
    step = -(-heads // rounds)  # rounds of about equal size
    for image in range(batch):
        for start in range(0, heads, step):
            yield Group(slice(image, image + 1), slice(start, min(start + step, heads)))
