"""Score matrices in groups of (image, head) pairs that fit the cache, and the two softmaxes of a group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from attngraft.dispatch.formula import accurate

#: numbers in the score matrices of one group, per thread
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
    def matrices(self) -> int:
        return (self.images.stop - self.images.start) * (self.heads.stop - self.heads.start)


class Scores:
    """S = scale q k^T + bias, never whole; `bias` (b, H or 1, Nq, Nk) and `visible` (B, H, Nq, Nk) as the operations say."""

    def __init__(self, q: Tensor, k: Tensor, *, bias: Tensor | None, visible: Tensor | None, scale: float) -> None:
        self.q, self.k, self.bias, self.visible, self.scale = q, k, bias, visible, scale
        self.dtype = accurate(q)
        self.shape = (*q.shape[:3], k.shape[2])
        self.masked = bias is not None or visible is not None
        self.groups = list(_groups(self.shape, 1 if bias is None else len(bias)))

    @property
    def bytes(self) -> int:
        """Of all score matrices."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def whole(self) -> Tensor:
        """Room for all of them: (B, H, Nq, Nk)."""
        return self.q.new_empty(self.shape, dtype=self.dtype)

    def buffer(self) -> Tensor:
        """Room for the largest group: (n, Nq, Nk)."""
        return self.q.new_empty(max(g.matrices for g in self.groups), *self.shape[2:], dtype=self.dtype)

    def softmaxes(self, group: Group, row: Tensor | None, column: Tensor) -> Tensor:
        """Write the softmax over keys into `row`, and into `column` E, not yet divided by its column sums.

        Returns:
            The column sums Z (n, Nk, 1). What is masked is 0 in both; a column of zeros has Z = 1.
        """
        self._scores(group, column)
        if row is not None:
            torch.softmax(column, -1, out=row)
            # A row that sees nothing is NaN from end to end; to look at one column is cheap, to look at all is not.
            if self.masked and (row.device.type != "cpu" or row[..., 0].isnan().any()):
                row.masked_fill_((column == float("-inf")).all(-1, keepdim=True), 0)
        largest = column.amax(-2, keepdim=True)
        if self.masked:
            largest.clamp_(min=torch.finfo(self.dtype).min)
        sums = column.sub_(largest).exp_().sum(-2).unsqueeze(-1)
        return sums.clamp_(min=1) if self.masked else sums

    def gather(self, group: Group, gradient: Tensor, to_bias: Tensor) -> None:
        """Add the gradient of the group's scores (n, Nq, Nk) to that of the bias."""
        part, by_bias = self._bias(group, to_bias), self._by_bias(group, gradient, to_bias)
        part.add_(by_bias.sum(0).sum_to_size(part.shape))

    def _bias(self, group: Group, bias: Tensor) -> Tensor:
        """The group's part of the bias: (images, or b if these are more, H or 1, Nq, Nk)."""
        count = group.images.stop - group.images.start
        if count < len(bias):
            start = group.images.start % len(bias)
            bias = bias[start : start + count]
        return bias if bias.shape[1] == 1 else bias[:, group.heads]

    def _by_bias(self, group: Group, tensor: Tensor, bias: Tensor) -> Tensor:
        """(n, Nq, Nk) as (r, images or b, heads, Nq, Nk): the last four go with `_bias`."""
        images = group.images.stop - group.images.start
        return tensor.view(-1, min(images, len(bias)), group.heads.stop - group.heads.start, *self.shape[2:])

    def _scores(self, group: Group, out: Tensor) -> None:
        q, k = group.of(self.q, self.dtype), group.of(self.k, self.dtype)
        torch.baddbmm(out, q, k.mT, beta=0, alpha=self.scale, out=out)
        if self.bias is not None:
            self._by_bias(group, out, self.bias).add_(self._bias(group, self.bias))
        if self.visible is not None:
            out.masked_fill_(~group.of(self.visible), float("-inf"))


def _groups(shape: tuple[int, ...], period: int) -> Iterator[Group]:
    """As many images as fit, part of one period of the bias or several whole ones; else some heads of one image."""
    batch, heads, queries, keys = shape
    fitting = max(1, NUMBERS * torch.get_num_threads() // (queries * keys))
    if fitting >= heads:
        most = min(batch, fitting // heads)
        step = next(count for count in range(most, 0, -1) if period % count == 0 or count % period == 0)
        for start in range(0, batch, step):
            yield Group(slice(start, min(start + step, batch)), slice(0, heads))
        return
    for image in range(batch):
        for start in range(0, heads, fitting):
            yield Group(slice(image, image + 1), slice(start, min(start + fitting, heads)))
