"""Bi-directional attention in lean PyTorch: both softmaxes of one score matrix, with a written-out backward.

The sum over keys is taken before the hypernetwork, which is exact: L_ij knows no channel and W_j is linear in v_hat_j, so
isa_i = hyper(sum_j L_ij v_hat_j, q_hat_i), and nothing of N x N x d is made.

Work goes group by group of (image, head) pairs whose score matrices fit the cache. Per group the scores become A = softmax
over keys, and E = exp(S - its largest in the column); L = E / Z, Z the column sums, is never written: 1 / Z goes to v_hat.
The softmax backward's subtractions ride along as one more column of the products:

    dS = A (dsa v^T - D) + L (du v_hat^T - e),    D_i = dsa_i . sa_i,    e_j = dv_hat_j . v_hat_j

A and E are kept for the backward where they are small, and made again where they are not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attngraft.dispatch.formula import Gradients, accurate, differentiable, formula_wanted, in_autocast_dtype
from attngraft.mechanisms.bisa import reference
from attngraft.mechanisms.bisa.groups import Group, Scores
from attngraft.mechanisms.bisa.hyper import hyper_transform

#: bytes of A and E that one call may keep for its backward
KEPT = 2**26


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
    """sa (B, H, Nq, dv) and u (B, H, Nq, s), in memory as (B, Nq, H, width); half precision is worked on in float32."""
    q, k, v, v_hat = in_autocast_dtype(q, k, v, v_hat)  # type: ignore[assignment]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    lines = (q.shape[2], k.shape[2])
    bias = None if bias is None else bias.expand(-1, -1, *lines)
    visible = None if visible is None else visible.expand(*q.shape[:2], *lines)
    if formula_wanted(q, k, v, v_hat, bias, visible) or not q.numel() * k.numel():
        return formula(q, k, v, v_hat, bias, visible, scale=scale)
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
) -> tuple[Tensor | None, Tensor]:
    """The same as plain operations, softmaxes in float32."""
    found = reference.scores(q, k, bias=bias, visible=visible, scale=scale).to(accurate(q))
    masked = bias is not None or visible is not None
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


class _TwoWay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor | None, Tensor]:
        q, k, v, v_hat, bias, visible, ctx.scale = inputs
        scores = Scores(q, k, bias=bias, visible=visible, scale=ctx.scale)
        keep = any(ctx.needs_input_grad) and 2 * scores.bytes <= KEPT
        columns = scores.whole() if keep else scores.buffer()
        rows = None if v is None else torch.empty_like(columns)
        sums = columns.new_empty(*k.shape[:3], 1)
        attended: Any = None if v is None else _empty(q, v)
        u = _empty(q, v_hat)
        for group in scores.groups:
            column, row = _part(columns, group, keep), None if rows is None else _part(rows, group, keep)
            total = scores.softmaxes(group, row, column)
            group.put(sums, total)
            group.put(u, torch.bmm(column, group.of(v_hat, scores.dtype) / total))
            if row is not None:
                group.put(attended, torch.bmm(row, group.of(v, scores.dtype)))
        ctx.save_for_backward(*inputs[:-1], attended, *((columns, rows, sums) if keep else (None, None, None)))
        return attended, u

    @staticmethod
    def backward(ctx: Any, to_attended: Any, to_u: Tensor) -> Gradients:
        *inputs, attended, columns, rows, sums = ctx.saved_tensors
        if torch.is_grad_enabled():
            found = differentiable(lambda *i: formula(*i, scale=ctx.scale), inputs, (to_attended, to_u))
            return *found, None
        q, k, v, v_hat, bias, visible = inputs
        scores = Scores(q, k, bias=bias, visible=visible, scale=ctx.scale)
        kept, dtype = sums is not None, scores.dtype
        if not kept:
            columns, rows = scores.buffer(), None if v is None else scores.buffer()
        first = scores.buffer()
        second: Any = None if v is None else torch.empty_like(first) if kept else columns  # these have served by then
        to_q, to_k, to_v_hat = _empty(q, q), _empty(k, k), _empty(v_hat, v_hat)
        to_v: Any = None if v is None else _empty(v, v)
        to_bias = bias.new_zeros(bias.shape, dtype=dtype) if ctx.needs_input_grad[4] else None
        for group in scores.groups:
            column, row = _part(columns, group, kept), None if rows is None else _part(rows, group, kept)
            total = group.of(sums) if kept else scores.softmaxes(group, row, column)
            to_scores = _part(first, group, False)
            values, gradient = group.of(v_hat, dtype), group.of(to_u, dtype)
            to_values = torch.bmm(column.mT, gradient).div_(total)
            group.put(to_v_hat, to_values)
            shift = (to_values * values).sum(-1, keepdim=True).neg_()
            right = torch.cat([values, shift], -1).div_(total)
            torch.bmm(torch.cat([gradient, torch.ones_like(gradient[..., :1])], -1), right.mT, out=to_scores)
            to_scores.mul_(column)
            if row is not None:
                values, gradient = group.of(v, dtype), group.of(to_attended, dtype)
                group.put(to_v, torch.bmm(row.mT, gradient))
                shift = (gradient * group.of(attended, dtype)).sum(-1, keepdim=True).neg_()
                right = torch.cat([values, torch.ones_like(values[..., :1])], -1)
                by_rows = _part(second, group, False)
                torch.bmm(torch.cat([gradient, shift], -1), right.mT, out=by_rows)
                to_scores.addcmul_(row, by_rows)
            if to_bias is not None:
                scores.gather(group, to_scores, to_bias)
            group.put(to_q, torch.bmm(to_scores, group.of(k, dtype)).mul_(ctx.scale))
            group.put(to_k, torch.bmm(to_scores.mT, group.of(q, dtype)).mul_(ctx.scale))
        to_bias = None if to_bias is None else to_bias.to(bias.dtype)
        return to_q, to_k, to_v, to_v_hat, to_bias, None, None


def _part(matrices: Tensor, group: Group, whole: bool) -> Tensor:
    """The group's part of all matrices, or of the buffer that groups take turns with."""
    return group.of(matrices) if whole else matrices[: group.matrices]


def _empty(side: Tensor, values: Tensor) -> Tensor:
    """Room for (B, H, N, width), N of `side` and the rest of `values`, in memory as (B, N, H, width)."""
    batch, heads, tokens = side.shape[:3]
    return values.new_empty(batch, tokens, heads, values.shape[-1]).transpose(1, 2)
