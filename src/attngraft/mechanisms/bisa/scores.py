"""Score matrices in groups and tiles that fit the cache, and their two softmaxes."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from attngraft.dispatch.autograd import accumulation_dtype
from attngraft.mechanisms.bisa import reference

#: number of scores in one group, per thread
NUMBERS = 2**19
#: number of scores in a tile; for matrices up to twice as large, additional calls would cost more than the cache saves
TILE = 2**19
#: number of scores in a group or a tile on devices other than the CPU
NUMBERS_OFF_CPU = 2**26
#: number of keys below which products with a tile are slower per key
FEWEST_KEYS = 64

ALL = slice(None)  #: all keys


def formula(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    v_hat: Tensor,
    bias: Tensor | None,
    visible: Tensor | None,
    scale: float,
    masked: bool = True,
) -> tuple[Tensor | None, Tensor]:
    """Compute both directions in plain operations, softmaxes in float32. `masked`: bias and mask may exclude pairs."""
    scores = reference.scores(q, k, bias=bias, visible=visible, scale=scale).to(accumulation_dtype(q))
    masked = masked and (bias is not None or visible is not None)
    softmax = reference.masked_softmax if masked else torch.softmax
    attended = None if v is None else softmax(scores, -1).to(v.dtype) @ v
    return attended, softmax(scores, -2).to(v_hat.dtype) @ v_hat


class Group(NamedTuple):
    """Some heads of some images, treated as n = images * heads matrices."""

    images: slice
    heads: slice

    def of(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return the group's part of (B, H, ...), as (n, ...)."""
        part = tensor[self.images, self.heads].flatten(0, 1)
        return part if dtype is None else part.to(dtype)

    def put(self, tensor: Tensor, values: Tensor) -> None:
        """Write `values` (n, ...) to the group's part of (B, H, ...)."""
        part = tensor[self.images, self.heads]
        part.copy_(values.view(part.shape))

    @property
    def counts(self) -> tuple[int, int]:
        """Number of images and of heads."""
        return self.images.stop - self.images.start, self.heads.stop - self.heads.start


class Scores:
    """The scores S = scale q k^T + bias, computed in parts.

    `bias` (b, H or 1, Nq, Nk) and `visible` (B, H, Nq, Nk) are as in reference.py. A group is processed in steps over
    the keys, or in a single step if its matrices fit. A tile contains all queries and the keys of a step, so the
    softmax over queries is complete within it.

    Args:
        tiled: allow several steps.
    """

    def __init__(
        self, q: Tensor, k: Tensor, *, bias: Tensor | None, visible: Tensor | None, scale: float, tiled: bool = False
    ) -> None:
        self.q, self.k, self.bias, self.visible, self.scale = q, k, bias, visible, scale
        self.dtype = accumulation_dtype(q)
        queries, keys = q.shape[2], k.shape[2]
        on_cpu = q.device.type == "cpu"  # on other devices these sizes only save memory
        fitting = (NUMBERS * torch.get_num_threads() if on_cpu else NUMBERS_OFF_CPU) // (queries * keys)
        self.groups = list(_groups(len(q), q.shape[1], fitting, 1 if bias is None else len(bias)))
        step = min(keys, max(_tile(q) // queries, FEWEST_KEYS)) if tiled else keys
        self.steps = [slice(start, min(start + step, keys)) for start in range(0, keys, step)]
        most = max(images * heads for images, heads in (group.counts for group in self.groups))
        self._buffer_size = most * queries * step

    @property
    def masked(self) -> bool:
        """Whether any pair may be masked."""
        return self.bias is not None or self.visible is not None

    def buffer(self) -> Tensor:
        """Return flat memory for the largest tile, to be reused by all tiles."""
        return self.q.new_empty(self._buffer_size, dtype=self.dtype)

    def queries(self, group: Group) -> Tensor:
        """Return scale q (n, Nq, dk)."""
        return group.of(self.q, self.dtype) * self.scale

    def of(self, group: Group, keys: slice, queries: Tensor, buffer: Tensor) -> Tensor:
        """Write the scores of some keys (n, Nq, keys) to `buffer`; -inf where a pair is hidden."""
        k = group.of(self.k[:, :, keys], self.dtype)
        out = shaped(buffer, *queries.shape[:2], k.shape[1])
        torch.bmm(queries, k.mT, out=out)
        if self.bias is not None:
            self._by_bias(group, out).add_(self._bias(group, keys, self.bias))
        if self.visible is not None:
            out.masked_fill_(~group.of(self.visible[..., keys]), float("-inf"))
        return out

    def softmax(self, scores: Tensor, dim: int, buffer: Tensor) -> Tensor:
        """Write the softmax of whole matrices along `dim` to `buffer`; fully masked lines become 0."""
        weights = torch.softmax(scores, dim, out=shaped(buffer, *scores.shape))
        # a hidden line is all NaN: checking one entry of each is cheap, checking all of them is not
        if self.masked and (weights.device.type != "cpu" or weights.select(dim, 0).isnan().any()):
            weights.masked_fill_((scores == float("-inf")).all(dim, keepdim=True), 0)
        return weights

    def add_bias_gradient(self, group: Group, keys: slice, gradient: Tensor, to_bias: Tensor) -> None:
        """Add the gradient of a tile of scores to that of the bias."""
        part = self._bias(group, keys, to_bias)
        part.add_(self._by_bias(group, gradient).sum(0).sum_to_size(part.shape))

    def _bias(self, group: Group, keys: slice, bias: Tensor) -> Tensor:
        """Return the tile's part of the bias: (images, or b if these are more, H or 1, Nq, keys)."""
        images = group.counts[0]
        if images < len(bias):
            start = group.images.start % len(bias)
            bias = bias[start : start + images]
        return bias[..., keys] if bias.shape[1] == 1 else bias[:, group.heads, :, keys]

    def _by_bias(self, group: Group, tile: Tensor) -> Tensor:
        """Return (n, Nq, keys) as (r, images or b, heads, Nq, keys), the last four axes as in `_bias`."""
        images, heads = group.counts
        period = images if self.bias is None else min(images, len(self.bias))
        return tile.view(-1, period, heads, *tile.shape[1:])


def large(q: Tensor, k: Tensor) -> bool:
    """Return whether a score matrix must be tiled."""
    return q.shape[2] * k.shape[2] > 2 * _tile(q)


def _tile(q: Tensor) -> int:
    return TILE if q.device.type == "cpu" else NUMBERS_OFF_CPU


def shaped(buffer: Tensor, *shape: int) -> Tensor:
    """Return the beginning of a flat `buffer`, viewed in this shape."""
    return buffer[: torch.Size(shape).numel()].view(shape)


def _groups(batch: int, heads: int, fitting: int, period: int) -> Iterator[Group]:
    """Yield groups that fit the cache: images within whole or partial periods of the bias, or heads of one image."""
    if fitting >= heads:
        most = min(batch, fitting // heads)
        step = next(count for count in range(most, 0, -1) if period % count == 0 or count % period == 0)
        for start in range(0, batch, step):
            yield Group(slice(start, min(start + step, batch)), slice(0, heads))
        return
    rounds = -(-heads // max(fitting, 1))
    step = -(-heads // rounds)  # about the same number of heads in each round
    for image in range(batch):
        for start in range(0, heads, step):
            yield Group(slice(image, image + 1), slice(start, min(start + step, heads)))
