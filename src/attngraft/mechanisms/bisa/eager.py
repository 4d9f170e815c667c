"""Bi-directional attention in lean PyTorch: both softmaxes of one score matrix, with a written-out backward.

The sum over keys is taken before the hypernetwork, which is exact: L_ij knows no channel and W_j is linear in v_hat_j, so
isa_i = hyper(sum_j L_ij v_hat_j, q_hat_i), and nothing of N x N x d is made.

Nor is anything of N x N kept. Work goes group by group of (image, head) pairs in buffers that stay in the cache and are used
again; the backward makes the scores once more, which costs less than the page faults of keeping them. A score matrix that is
too large for the cache goes tile by tile, some keys at a time, its softmax over keys as in flash attention. The softmax over
queries is E = exp(S - each key's largest) over its sums Z, where 1 / Z goes to v_hat and L = E / Z is never written; the
backward gets the largest and the sums. The softmaxes' derivatives subtract in one more column of the products:

    dS = A (dsa v^T - D) + L (du v_hat^T - e),    D_i = dsa_i . sa_i,    e_j = dv_hat_j . v_hat_j

Half precision is worked on in float32. Where the score matrices are so small that to keep them costs nothing, plain
operations run; they are faster there.
"""

from __future__ import annotations

import math
from typing import Any

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
from attngraft.mechanisms.bisa import reference
from attngraft.mechanisms.bisa.groups import Group, Rows, Scores, shaped
from attngraft.mechanisms.bisa.hyper import hyper_transform
from attngraft.mechanisms.bisa.layout import room

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
        found: tuple[Tensor | None, Tensor] = _TwoWay.apply(q, k, v, v_hat, bias, visible, scale)
    return found


def formula(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    v_hat: Tensor,
    bias: Tensor | None,
    visible: Tensor | None,
    *,
    scale: float,
    hidden: bool = True,
) -> tuple[Tensor | None, Tensor]:
    """The same as plain operations, softmaxes in float32. `hidden`: some pair may be masked."""
    found = reference.scores(q, k, bias=bias, visible=visible, scale=scale).to(accurate(q))
    masked = hidden and (bias is not None or visible is not None)
    softmax = reference.masked_softmax if masked else torch.softmax
    attended = None if v is None else softmax(found, -1).to(v.dtype) @ v
    return attended, softmax(found, -2).to(v_hat.dtype) @ v_hat


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


class _TwoWay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor | None, Tensor]:
        q, k, v, v_hat, bias, visible, ctx.scale = inputs
        scores = Scores(q, k, bias=bias, visible=visible, scale=ctx.scale)
        dtype, buffer, spare = scores.dtype, scores.buffer(), None if v is None else scores.buffer()
        attended: Any = None if v is None else room(q, v)
        u, ctx.tiled = room(q, v_hat), scores.tiled
        of_queries = q.new_empty(*q.shape[:3], 1, dtype=dtype) if scores.tiled and v is not None else None
        of_keys = k.new_empty(*k.shape[:3], 2, dtype=dtype)
        for group in scores.groups:
            queries, rows = scores.queries(group), Rows(scores)
            received: Any = None
            for keys in scores.steps:
                found = scores.of(group, keys, queries, buffer)
                if spare is not None:
                    rows.add(found, group.of(v[:, :, keys], dtype), spare)
                largest = scores.largest(found, -2)
                shares = found.sub_(largest).exp_()
                one_over = scores.positive(shares.sum(-2)).reciprocal_().unsqueeze(-1)
                received = _plus(received, shares, group.of(v_hat[:, :, keys], dtype) * one_over)
                group.put(of_keys[:, :, keys], torch.cat([largest.mT, one_over], -1))
            group.put(u, received)
            if attended is not None:
                group.put(attended, rows.attended())
            if of_queries is not None:
                group.put(of_queries, rows.log_sums())
        ctx.save_for_backward(*inputs[:-1], attended, of_queries, of_keys)
        return attended, u

    @staticmethod
    @without_autocast
    def backward(ctx: Any, to_attended: Any, to_u: Tensor) -> Gradients:
        *inputs, attended, of_queries, of_keys = ctx.saved_tensors
        if torch.is_grad_enabled():
            again = differentiable(lambda *i: formula(*i, scale=ctx.scale), inputs, (to_attended, to_u))
            return *again, None
        q, k, v, v_hat, bias, visible = inputs
        scores = Scores(q, k, bias=bias, visible=visible, scale=ctx.scale, tiled=ctx.tiled)
        dtype, buffer, third = scores.dtype, scores.buffer(), scores.buffer()
        spare = None if v is None else scores.buffer()
        to_q, to_k, to_v_hat = room(q, q), room(k, k), room(v_hat, v_hat)
        to_v: Any = None if v is None else room(v, v)
        to_bias = bias.new_zeros(bias.shape, dtype=dtype) if ctx.needs_input_grad[4] else None
        for group in scores.groups:
            queries = scores.queries(group)
            to_queries: Any = None
            by_u = group.of(to_u, dtype)
            by_u_and_1 = torch.cat([by_u, _one(by_u)], -1)
            if spare is not None:
                by_row = group.of(to_attended, dtype)
                shift = (by_row * group.of(attended, dtype)).sum(-1, keepdim=True).neg_()
                by_row_and_shift = torch.cat([by_row, shift], -1)
            for keys in scores.steps:
                found = scores.of(group, keys, queries, buffer)
                if spare is not None:
                    weights = _weights(scores, group, found, of_queries, spare)
                largest, one_over = group.of(of_keys[:, :, keys]).split(1, -1)
                shares = found.sub_(largest.mT).exp_()
                values = group.of(v_hat[:, :, keys], dtype)
                to_values = torch.bmm(shares.mT, by_u).mul_(one_over)
                group.put(to_v_hat[:, :, keys], to_values)
                shift = (to_values * values).sum(-1, keepdim=True).neg_()
                right = torch.cat([values, shift], -1).mul_(one_over)
                to_scores = torch.bmm(by_u_and_1, right.mT, out=shaped(third, *found.shape)).mul_(shares)
                if spare is not None:
                    values = group.of(v[:, :, keys], dtype)
                    group.put(to_v[:, :, keys], torch.bmm(weights.mT, by_row))
                    right = torch.cat([values, _one(values)], -1)
                    # into the shares' memory: they have served
                    to_scores.addcmul_(weights, torch.bmm(by_row_and_shift, right.mT, out=found))
                if to_bias is not None:
                    scores.gather(group, keys, to_scores, to_bias)
                to_queries = _plus(to_queries, to_scores, group.of(k[:, :, keys], dtype))
                group.put(to_k[:, :, keys], torch.bmm(to_scores.mT, queries))
            group.put(to_q, to_queries.mul_(ctx.scale))
        to_bias = None if to_bias is None else to_bias.to(bias.dtype)
        return to_q, to_k, to_v, to_v_hat, to_bias, None, None


def _weights(scores: Scores, group: Group, tile: Tensor, log_sums: Tensor | None, buffer: Tensor) -> Tensor:
    """The part of the softmax over keys that a tile has, written to `buffer`."""
    if log_sums is None:
        return scores.over_keys(tile, buffer)
    return torch.sub(tile, group.of(log_sums), out=shaped(buffer, *tile.shape)).exp_()


def _plus(so_far: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """so_far + left @ right, in place where there is something so far."""
    return torch.bmm(left, right) if so_far is None else torch.baddbmm(so_far, left, right, out=so_far)


def _one(rows: Tensor) -> Tensor:
    return torch.ones_like(rows[..., :1])
