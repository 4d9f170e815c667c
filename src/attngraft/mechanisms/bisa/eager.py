"""Bi-directional attention in lean PyTorch: both softmaxes of one score matrix, with a written-out backward.

The sum over keys is taken before the hypernetwork, which is exact: L_ij knows no channel and W_j is linear in v_hat_j, so
isa_i = hyper(sum_j L_ij v_hat_j, q_hat_i), and nothing of N x N x d is made.

Nor is anything of N x N kept. Work goes group by group of (image, head) pairs in buffers that stay in the cache and are used
again; the backward makes the scores once more, which costs less than the page faults of keeping them. A score matrix that is
too large for the cache goes tile by tile (tiles.py). Half precision is worked on in float32. Where the score matrices are so
small that to keep them costs nothing, plain operations run; they are faster there.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from attngraft.dispatch.formula import (
    Gradients,
    accurate,
    differentiable,
    formula_wanted,
    in_autocast_dtype,
    without_autocast,
)
from attngraft.mechanisms.bisa.formula import formula
from attngraft.mechanisms.bisa.groups import ALL, Scores, large, shaped
from attngraft.mechanisms.bisa.hyper import hyper_transform
from attngraft.mechanisms.bisa.tiles import Tiled
from attngraft.mechanisms.layout import room

#: numbers in all score matrices together up to which plain operations keep them
SMALL = 2**21


def two_way_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    v_hat: Tensor,
    *,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor | None, Tensor]:
    """sa (B, H, Nq, dv) and u (B, H, Nq, s)."""
    q, k, v, v_hat = in_autocast_dtype(q, k, v, v_hat)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    lines = (q.shape[2], k.shape[2])
    bias = None if bias is None else bias.expand(-1, -1, *lines)
    visible = None if visible is None else visible.expand(*q.shape[:2], *lines)
    if formula_wanted(q, k, v, v_hat, bias, visible) or not q.numel() * k.numel():
        return formula(q, k, v, v_hat, bias, visible, scale=scale)
    if _small(q, k) and not _hidden(bias, visible):
        return formula(q, k, v, v_hat, bias, visible, scale=scale, hidden=False)
    with torch.autocast(q.device.type, enabled=False):
        way = Tiled if large(q, k) else _Whole
        found: tuple[Tensor | None, Tensor] = way.apply(q, k, v, v_hat, bias, visible, scale)
    return found


def inverse_attention(
    q: Tensor,
    k: Tensor,
    q_hat: Tensor,
    v_hat: Tensor,
    hyper: Tensor,
    *,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """isa (B, H, Nq, dv)."""
    _, u = two_way_attention(q, k, None, v_hat, bias=bias, visible=visible, scale=scale)
    return hyper_transform(u, q_hat, hyper)


def _small(q: Tensor, k: Tensor) -> bool:
    """Whether plain operations, which keep the score matrices, are the faster ones."""
    exact = q.dtype == accurate(q)  # half precision is worked on in float32, group by group
    return exact and q.device.type == "cpu" and q.shape[:3].numel() * k.shape[2] <= SMALL


def _hidden(bias: Tensor | None, visible: Tensor | None) -> bool:
    """Whether some pair may be masked; looks at the values of a bias."""
    return visible is not None or (bias is not None and bias.detach().amin().item() == -math.inf)


class _Whole(torch.autograd.Function):
    """Matrices that fit the cache, some at a time."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor | None, Tensor]:
        q, k, v, v_hat, bias, visible, ctx.scale = inputs
        scores = Scores(q, k, bias=bias, visible=visible, scale=ctx.scale)
        dtype, buffer, spare = scores.dtype, scores.buffer(), scores.buffer()
        attended: Any = None if v is None else room(q, v)
        u = room(q, v_hat)
        for group in scores.groups:
            found = scores.of(group, ALL, scores.queries(group), buffer)
            if v is not None:
                group.put(attended, torch.bmm(scores.softmax(found, -1, spare), group.of(v, dtype)))
            group.put(u, torch.bmm(scores.softmax(found, -2, spare), group.of(v_hat, dtype)))
        ctx.save_for_backward(*inputs[:-1])
        return attended, u

    @staticmethod
    @without_autocast
    def backward(ctx: Any, to_attended: Any, to_u: Tensor) -> Gradients:
        inputs = ctx.saved_tensors
        if torch.is_grad_enabled():
            again = differentiable(lambda *i: formula(*i, scale=ctx.scale), inputs, (to_attended, to_u))
            return *again, None
        q, k, v, v_hat, bias, visible = inputs
        scores = Scores(q, k, bias=bias, visible=visible, scale=ctx.scale)
        dtype = scores.dtype
        buffer, spare, third, fourth = (scores.buffer() for _ in range(4))
        to_q, to_k, to_v_hat = room(q, q), room(k, k), room(v_hat, v_hat)
        to_v: Any = None if v is None else room(v, v)
        to_bias = bias.new_zeros(bias.shape, dtype=dtype) if ctx.needs_input_grad[4] else None
        for group in scores.groups:
            queries = scores.queries(group)
            found = scores.of(group, ALL, queries, buffer)
            weights = scores.softmax(found, -2, spare)
            gradient, values = group.of(to_u, dtype), group.of(v_hat, dtype)
            group.put(to_v_hat, torch.bmm(weights.mT, gradient))
            to_weights = torch.bmm(gradient, values.mT, out=shaped(third, *found.shape))
            to_scores = _through_softmax(to_weights, weights, -2, shaped(fourth, *found.shape))
            if v is not None:
                weights = scores.softmax(found, -1, spare)
                gradient, values = group.of(to_attended, dtype), group.of(v, dtype)
                group.put(to_v, torch.bmm(weights.mT, gradient))
                torch.bmm(gradient, values.mT, out=to_weights)
                to_scores.add_(_through_softmax(to_weights, weights, -1, found))  # the scores have served
            if to_bias is not None:
                scores.gather(group, ALL, to_scores, to_bias)
            group.put(to_q, torch.bmm(to_scores, group.of(k, dtype)).mul_(ctx.scale))
            group.put(to_k, torch.bmm(to_scores.mT, queries))
        to_bias = None if to_bias is None else to_bias.to(bias.dtype)
        return to_q, to_k, to_v, to_v_hat, to_bias, None, None


def _through_softmax(gradient: Tensor, weights: Tensor, dim: int, out: Tensor) -> Tensor:
    """The gradient of a softmax's input, from that of its output `weights`."""
    return cast(
        Tensor,
        torch.ops.aten._softmax_backward_data.out(gradient, weights, dim, weights.dtype, grad_input=out),
    )
