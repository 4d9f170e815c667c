"""Local attention for `torch.compile` on the CPU: sums that a compiler turns into one loop each.

The neighborhoods are views of padded maps. Inductor reads them inside the loop of the sum, with the channels of a head as
vectors, and stores nothing that is k * k times as large as the values. All maps are channels last: values (B, Y, X, C),
weights of the K = k * k offsets (B, Y, X, H K).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.mechanisms.local.geometry import Neighborhood


class WeightedSum(torch.autograd.Function):
    """sum over o of (weights_i[h(c), o] + addend[c, o]) v_(i + d o)[c], (B, Y, X, C); the addend (C, k, k) may be None."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, weights: Tensor, addend: Tensor | None, size: int, dilation: int) -> Tensor:
        return _sums(values, weights, addend, Neighborhood(size, dilation))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, int, int], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.near = Neighborhood(*inputs[3:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        (values, weights, addend), near = ctx.saved_tensors, ctx.near
        to_weights = _products(gradient, values, weights.shape[3] // near.offsets, near)
        to_addend = None
        if addend is not None:
            to_addend = (gradient[..., None, None] * _neighbors(values, 1, near).squeeze(3)).sum((0, 1, 2))
        return _mirrored_sums(gradient, weights, addend, near), to_weights, to_addend, None, None


class Scores(torch.autograd.Function):
    """q_i . k_(i + d o) for each head and offset, (B, Y, X, H K)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(queries: Tensor, keys: Tensor, heads: int, size: int, dilation: int) -> Tensor:
        return _products(queries, keys, heads, Neighborhood(size, dilation))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, int, int], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.near = Neighborhood(*inputs[3:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        queries, keys = ctx.saved_tensors
        to_queries = _sums(keys, gradient, None, ctx.near)
        return to_queries, _mirrored_sums(queries, gradient, None, ctx.near), None, None, None


def _sums(values: Tensor, weights: Tensor, addend: Tensor | None, near: Neighborhood) -> Tensor:
    """Return the weighted sum over the neighbors of every pixel."""
    by_offset = weights.unflatten(3, (-1, 1, near.size, near.size))
    heads = by_offset.shape[3]
    if addend is not None:
        by_offset = by_offset + _by_head(addend, heads)
    return (_neighbors(values, heads, near) * by_offset).sum((5, 6)).flatten(3)


def _products(centers: Tensor, values: Tensor, heads: int, near: Neighborhood) -> Tensor:
    """Return the product of every pixel with each of its neighbors, head by head."""
    by_head = centers.unflatten(3, (heads, -1, 1, 1))
    return (by_head * _neighbors(values, heads, near)).sum(4).flatten(3)


def _mirrored_sums(gradient: Tensor, weights: Tensor, addend: Tensor | None, near: Neighborhood) -> Tensor:
    """Return the gradient of the values: pixel j receives from j - d o with the weight of that pixel at offset o."""
    size, step = near.size, near.dilation
    padded = _padded(weights, near)
    image, line, pixel, _ = padded.stride()
    # of every neighbor, only the weight at the offset that leads back; (B, Y, X, H, 1, k, k)
    heads = weights.shape[3] // near.offsets
    shape = *weights.shape[:3], heads, 1, size, size
    strides = image, line, pixel, near.offsets, 1, step * line - size, step * pixel - 1
    back = padded.as_strided(shape, strides, near.offsets - 1)
    if addend is not None:
        back = back + _by_head(addend.flip(1, 2), heads)
    return (_neighbors(gradient, heads, near) * back).sum((5, 6)).flatten(3)


def _by_head(addend: Tensor, heads: int) -> Tensor:
    """Return (C, k, k) as (H, D, k, k), channels last in memory so that those of a head are read as vectors."""
    channels, size = len(addend), addend.shape[2]
    last = addend.flatten(1).t().contiguous()
    # `as_strided` keeps the compiler from reading the addend in its own layout
    return last.as_strided((heads, channels // heads, size, size), (channels // heads, 1, size * channels, channels))


def _neighbors(maps: Tensor, heads: int, near: Neighborhood) -> Tensor:
    """Return the neighbors of every pixel, (B, Y, X, H, D, k, k), zero outside of the map."""
    padded, step = _padded(maps, near), near.dilation
    image, line, pixel, _ = padded.stride()
    width = maps.shape[3] // heads
    # not `unfold`, whose result the backward would store
    return padded.as_strided(
        (*maps.shape[:3], heads, width, near.size, near.size), (image, line, pixel, width, 1, step * line, step * pixel)
    )


def _padded(maps: Tensor, near: Neighborhood) -> Tensor:
    return F.pad(maps, (0, 0) + (near.radius,) * 4).contiguous()
