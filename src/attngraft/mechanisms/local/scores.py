"""Scores of every pixel's query with the keys of its neighborhood, as a custom operation with a written-out backward.

    scores_i[h, o] = q_i . k_(i + d o)      per head; k = 0 outside of the map

It is to weights what the operation of lean.py is to values: its gradients are sums over neighbors, and that one's gradient
of the weights are these products. Tensors are (B, Y, X, C), contiguous, of one dtype, float32 or float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attngraft.dispatch.flops import register_flops
from attngraft.dispatch.formula import differentiable
from attngraft.mechanisms.local import reference
from attngraft.mechanisms.local.banded import Band, Mirrored, Padded, Products
from attngraft.mechanisms.local.lean import BLOCK, by_rows, strip_of
from attngraft.mechanisms.local.offsets import Neighborhood
from attngraft.mechanisms.local.stack import Stack


@torch.library.custom_op("attngraft::local_scores_lean", mutates_args=())
def score(queries: Tensor, keys: Tensor, heads: int, size: int, dilation: int) -> Tensor:
    """(B, Y, X, H K)."""
    near = Neighborhood(size, dilation)
    if not queries.numel():
        return _room(queries, heads, near).zero_()
    stack = Stack.of(queries, heads, near, apart=BLOCK)
    return stack.down(_score(stack.up(queries), stack.up(keys), heads, near))


def _score(queries: Tensor, keys: Tensor, heads: int, near: Neighborhood) -> Tensor:
    out = _room(queries, heads, near)
    strip = strip_of(queries, heads, near)
    own, padded, products = Padded(strip, queries), Padded(strip, keys), Products(strip, keys)
    for image in range(len(queries)):
        for start in range(0, queries.shape[1], strip.rows):
            to = out[image, start : start + strip.rows].unflatten(-1, (heads, -1))
            own.fill(queries[image], start)
            padded.fill(keys[image], start)
            to.copy_(products.of(own, padded, len(to)))
    return out


@torch.library.custom_op("attngraft::local_scores_lean_backward", mutates_args=())
def score_backward(
    to_scores: Tensor, queries: Tensor, keys: Tensor, heads: int, size: int, dilation: int
) -> tuple[Tensor, Tensor]:
    """The gradients of queries and keys."""
    near = Neighborhood(size, dilation)
    if not queries.numel():
        return torch.empty_like(queries), torch.empty_like(keys)
    stack = Stack.of(queries, heads, near, apart=BLOCK)
    to_queries, to_keys = _score_backward(stack.up(to_scores), stack.up(queries), stack.up(keys), heads, near)
    return stack.down(to_queries), stack.down(to_keys)


def _score_backward(
    to_scores: Tensor, queries: Tensor, keys: Tensor, heads: int, near: Neighborhood
) -> tuple[Tensor, Tensor]:
    to_queries, to_keys = torch.empty_like(queries), torch.empty_like(keys)
    strip = strip_of(queries, heads, near)
    own, padded, band = Padded(strip, queries), Padded(strip, keys), Band(strip, keys)
    mirrored = Mirrored(strip, keys, keys.shape[1])
    for image in range(len(queries)):
        weights = to_scores[image].unflatten(-1, (heads, near.offsets))
        mirrored.weights.copy_(weights)
        for start in range(0, queries.shape[1], strip.rows):
            rows = slice(start, start + strip.rows)
            count = len(weights[rows])
            own.fill(queries[image], start)
            padded.fill(keys[image], start)
            band.sums(by_rows(weights[rows], near), padded, to_queries[image, rows])
            band.sums(mirrored.seen(start, count), own, to_keys[image, rows])
    return to_queries, to_keys


def _room(queries: Tensor, heads: int, near: Neighborhood) -> Tensor:
    return queries.new_empty(*queries.shape[:3], heads * near.offsets)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *operands, heads, size, dilation = inputs
    ctx.save_for_backward(*operands)
    ctx.options = heads, size, dilation


def _backward(ctx: Any, to_scores: Tensor) -> tuple[Any, ...]:
    if torch.is_grad_enabled():  # these gradients are to be differentiated again
        found = differentiable(lambda *o: (_formula(*o, *ctx.options),), ctx.saved_tensors, (to_scores,))
    else:
        found = score_backward(to_scores.contiguous(), *ctx.saved_tensors, *ctx.options)
    return *found, *(None,) * 3


def _formula(queries: Tensor, keys: Tensor, heads: int, size: int, dilation: int) -> Tensor:
    first = queries.permute(0, 3, 1, 2), keys.permute(0, 3, 1, 2)
    return reference.local_scores(*first, heads=heads, neighborhood=Neighborhood(size, dilation)).permute(0, 2, 3, 1)


def _flops(queries: Any, keys: Any, heads: int, size: int, *_: Any, **__: Any) -> int:
    """A multiply-add for every offset and channel of every pixel."""
    batch, rows, columns, channels = queries
    return int(2 * batch * rows * columns * channels * size**2)


score.register_fake(lambda queries, keys, heads, size, dilation: _room(queries, heads, Neighborhood(size, dilation)))
score_backward.register_fake(lambda to_scores, queries, keys, *_: (torch.empty_like(queries), torch.empty_like(keys)))
score.register_autograd(_backward, setup_context=_setup)
register_flops(torch.ops.attngraft.local_scores_lean, _flops)
register_flops(
    torch.ops.attngraft.local_scores_lean_backward,
    lambda to_scores, *operands, **options: 2 * _flops(*operands, **options),
)
