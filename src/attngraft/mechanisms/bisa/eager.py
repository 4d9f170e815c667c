"""Bi-directional attention in optimized PyTorch: both softmaxes of one score matrix.

The sum over keys is taken before the hypernetwork, which is exact: L_ij does not depend on the channel and W_j is linear in
v_hat_j, so isa_i = hyper(sum_j L_ij v_hat_j, q_hat_i), without an N x N x d tensor.

No N x N tensor is stored either. (image, head) pairs are processed in groups, in reused buffers that fit the cache. The
backward recomputes the scores, which costs less than the page faults of storing them. Half precision is computed in float32.
For small score matrices plain operations are faster and are used instead.

A score matrix larger than the cache is processed in tiles of keys. A tile contains all queries, so the softmax over queries
is complete within it: with E = exp(S - max of each key's scores) and Z its sum for each key, v_hat is divided by Z, and
L = E / Z is never written. The softmax over keys is accumulated over the tiles, as in flash attention. The backward
recomputes the tiles from each key's maximum and sum and each query's log-sum-exp. The terms subtracted in the derivatives of
the softmaxes, D and e, are one more column of the matrix products:

    dS = A (dsa v^T - D) + L (du v_hat^T - e),    D_i = dsa_i . sa_i,    e_j = dv_hat_j . v_hat_j
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attngraft.dispatch.autograd import (
    Gradients,
    accumulation_dtype,
    cast_for_autocast,
    differentiable_gradients,
    is_traced,
    without_autocast,
)
from attngraft.mechanisms.bisa.hyper import hyper_transform
from attngraft.mechanisms.bisa.scores import ALL, Scores, formula, large, shaped
from attngraft.mechanisms.common import empty_heads
from attngraft.mechanisms.running_softmax import RunningSoftmax, add_product, as_divisor, largest_score

#: largest number of scores, over all score matrices, for which plain operations store them
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
    """Return sa (B, H, Nq, dv) and u (B, H, Nq, s)."""
    q, k, v, v_hat = cast_for_autocast(q, k, v, v_hat)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    lines = (q.shape[2], k.shape[2])
    bias = None if bias is None else bias.expand(-1, -1, *lines)
    visible = None if visible is None else visible.expand(*q.shape[:2], *lines)
    operands = (q, k, v, v_hat, bias, visible, scale)
    if is_traced(*operands[:-1]) or not q.numel() * k.numel():
        return formula(*operands)
    # half precision is computed in float32, group by group
    exact = q.dtype == accumulation_dtype(q)
    small = exact and q.device.type == "cpu" and q.shape[:3].numel() * k.shape[2] <= SMALL
    if small and not _hides_pairs(bias, visible):
        return formula(*operands, masked=False)
    with torch.autocast(q.device.type, enabled=False):
        return (_Tiled if large(q, k) else _Whole).apply(*operands)


def inverse_attention(q: Tensor, k: Tensor, q_hat: Tensor, v_hat: Tensor, hyper: Tensor, **masks: Any) -> Tensor:
    """Return isa (B, H, Nq, dv)."""
    return hyper_transform(two_way_attention(q, k, None, v_hat, **masks)[1], q_hat, hyper)


def _hides_pairs(bias: Tensor | None, visible: Tensor | None) -> bool:
    """Return whether any pair may be masked. Reads the values of `bias`, which synchronizes the device."""
    return visible is not None or (bias is not None and bias.detach().amin().item() == -math.inf)


def _differentiable(ctx: Any, inputs: Any, gradients: tuple[Tensor | None, ...]) -> Gradients:
    return *differentiable_gradients(partial(formula, scale=ctx.scale), inputs, gradients), None


class _Whole(torch.autograd.Function):
    """Both directions, group by group, for score matrices that fit the cache."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor | None, Tensor]:
        q, k, v, v_hat, bias, visible, ctx.scale = inputs
        scores = Scores(q, k, bias=bias, visible=visible, scale=ctx.scale)
        dtype, buffer, spare = scores.dtype, scores.buffer(), scores.buffer()
        attended: Any = None if v is None else empty_heads(q, v)
        u = empty_heads(q, v_hat)
        for group in scores.groups:
            tile = scores.of(group, ALL, scores.queries(group), buffer)
            if v is not None:
                group.put(attended, torch.bmm(scores.softmax(tile, -1, spare), group.of(v, dtype)))
            group.put(u, torch.bmm(scores.softmax(tile, -2, spare), group.of(v_hat, dtype)))
        ctx.save_for_backward(*inputs[:-1])
        return attended, u

    @staticmethod
    @without_autocast
    def backward(ctx: Any, to_attended: Any, to_u: Tensor) -> Gradients:
        inputs = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiable(ctx, inputs, (to_attended, to_u))
        q, k, v, v_hat, bias, visible = inputs
        scores = Scores(q, k, bias=bias, visible=visible, scale=ctx.scale)
        dtype = scores.dtype
        buffer, spare, third, fourth = (scores.buffer() for _ in range(4))
        to_q, to_k, to_v_hat = empty_heads(q, q), empty_heads(k, k), empty_heads(v_hat, v_hat)
        to_v: Any = None if v is None else empty_heads(v, v)
        to_bias = bias.new_zeros(bias.shape, dtype=dtype) if ctx.needs_input_grad[4] else None
        for group in scores.groups:
            queries = scores.queries(group)
            tile = scores.of(group, ALL, queries, buffer)
            weights = scores.softmax(tile, -2, spare)
            gradient, values = group.of(to_u, dtype), group.of(v_hat, dtype)
            group.put(to_v_hat, torch.bmm(weights.mT, gradient))
            to_weights = torch.bmm(gradient, values.mT, out=shaped(third, *tile.shape))
            to_scores = _through_softmax(to_weights, weights, -2, shaped(fourth, *tile.shape))
            if v is not None:
                weights = scores.softmax(tile, -1, spare)
                gradient, values = group.of(to_attended, dtype), group.of(v, dtype)
                group.put(to_v, torch.bmm(weights.mT, gradient))
                torch.bmm(gradient, values.mT, out=to_weights)
                to_scores.add_(_through_softmax(to_weights, weights, -1, tile))  # reuses the memory of the scores
            if to_bias is not None:
                scores.add_bias_gradient(group, ALL, to_scores, to_bias)
            group.put(to_q, torch.bmm(to_scores, group.of(k, dtype)).mul_(ctx.scale))
            group.put(to_k, torch.bmm(to_scores.mT, queries))
        to_bias = None if to_bias is None else to_bias.to(bias.dtype)
        return to_q, to_k, to_v, to_v_hat, to_bias, None, None


def _through_softmax(gradient: Tensor, weights: Tensor, dim: int, out: Tensor) -> Tensor:
    """Write the gradient of a softmax's input to `out`, from that of its output `weights`."""
    return torch.ops.aten._softmax_backward_data.out(gradient, weights, dim, weights.dtype, grad_input=out)


class _Tiled(torch.autograd.Function):
    """Both directions, in tiles of keys, for larger score matrices."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor | None, Tensor]:
        q, k, v, v_hat, bias, visible, ctx.scale = inputs
        scores = Scores(q, k, bias=bias, visible=visible, scale=ctx.scale, tiled=True)
        dtype, buffer, spare = scores.dtype, scores.buffer(), None if v is None else scores.buffer()
        attended: Any = None if v is None else empty_heads(q, v)
        u = empty_heads(q, v_hat)
        of_queries = None if v is None else q.new_empty(*q.shape[:3], 1, dtype=dtype)
        of_keys = k.new_empty(*k.shape[:3], 2, dtype=dtype)
        for group in scores.groups:
            queries, rows = scores.queries(group), RunningSoftmax(masked=scores.masked)
            received: Any = None
            for keys in scores.steps:
                tile = scores.of(group, keys, queries, buffer)
                if spare is not None:
                    rows.add(tile, group.of(v[:, :, keys], dtype), buffer=shaped(spare, *tile.shape))
                largest = largest_score(tile, -2, masked=scores.masked)
                shares = tile.sub_(largest).exp_()
                one_over = as_divisor(shares.sum(-2), masked=scores.masked).reciprocal_().unsqueeze(-1)
                received = add_product(received, shares, group.of(v_hat[:, :, keys], dtype) * one_over)
                group.put(of_keys[:, :, keys], torch.cat([largest.mT, one_over], -1))
            group.put(u, received)
            if attended is not None:
                group.put(attended, rows.output())
            if of_queries is not None:
                group.put(of_queries, rows.log_sums())
        ctx.save_for_backward(*inputs[:-1], attended, of_queries, of_keys)
        return attended, u

    @staticmethod
    @without_autocast
    def backward(ctx: Any, to_attended: Any, to_u: Tensor) -> Gradients:
        *inputs, attended, of_queries, of_keys = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiable(ctx, inputs, (to_attended, to_u))
        q, k, v, v_hat, bias, visible = inputs
        scores = Scores(q, k, bias=bias, visible=visible, scale=ctx.scale, tiled=True)
        dtype, buffer, third = scores.dtype, scores.buffer(), scores.buffer()
        spare = None if v is None else scores.buffer()
        to_q, to_k, to_v_hat = empty_heads(q, q), empty_heads(k, k), empty_heads(v_hat, v_hat)
        to_v: Any = None if v is None else empty_heads(v, v)
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
                tile = scores.of(group, keys, queries, buffer)
                if spare is not None:
                    weights = torch.sub(tile, group.of(of_queries), out=shaped(spare, *tile.shape)).exp_()
                largest, one_over = group.of(of_keys[:, :, keys]).split(1, -1)
                shares = tile.sub_(largest.mT).exp_()
                values = group.of(v_hat[:, :, keys], dtype)
                to_values = torch.bmm(shares.mT, by_u).mul_(one_over)
                group.put(to_v_hat[:, :, keys], to_values)
                shift = (to_values * values).sum(-1, keepdim=True).neg_()
                right = torch.cat([values, shift], -1).mul_(one_over)
                to_scores = torch.bmm(by_u_and_1, right.mT, out=shaped(third, *tile.shape)).mul_(shares)
                if spare is not None:
                    values = group.of(v[:, :, keys], dtype)
                    group.put(to_v[:, :, keys], torch.bmm(weights.mT, by_row))
                    right = torch.cat([values, _one(values)], -1)
                    # reuses the memory of the shares
                    to_scores.addcmul_(weights, torch.bmm(by_row_and_shift, right.mT, out=tile))
                if to_bias is not None:
                    scores.add_bias_gradient(group, keys, to_scores, to_bias)
                to_queries = add_product(to_queries, to_scores, group.of(k[:, :, keys], dtype))
                group.put(to_k[:, :, keys], torch.bmm(to_scores.mT, queries))
            group.put(to_q, to_queries.mul_(ctx.scale))
        to_bias = None if to_bias is None else to_bias.to(bias.dtype)
        return to_q, to_k, to_v, to_v_hat, to_bias, None, None


def _one(rows: Tensor) -> Tensor:
    return torch.ones_like(rows[..., :1])
