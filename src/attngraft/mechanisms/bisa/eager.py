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

from attngraft.dispatch.autograd import accumulation_dtype, cast_for_autocast, custom_op, needs_aten_ops
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
    if needs_aten_ops(*operands[:-1]) or not q.numel() * k.numel():
        return formula(*operands)
    # half precision is computed in float32, group by group
    exact = q.dtype == accumulation_dtype(q)
    small = exact and q.device.type == "cpu" and q.shape[:3].numel() * k.shape[2] <= SMALL
    if torch.compiler.is_compiling():
        if q.device.type != "cpu":
            return formula(*operands)
    elif small and not _hides_pairs(bias, visible):
        return formula(*operands, masked=False)
    attended, u = (_tiled if large(q, k) else _whole)(*operands)[:2]
    return (None if v is None else attended), u


def inverse_attention(q: Tensor, k: Tensor, q_hat: Tensor, v_hat: Tensor, hyper: Tensor, **masks: Any) -> Tensor:
    """Return isa (B, H, Nq, dv)."""
    return hyper_transform(two_way_attention(q, k, None, v_hat, **masks)[1], q_hat, hyper)


def _hides_pairs(bias: Tensor | None, visible: Tensor | None) -> bool:
    """Return whether any pair may be masked. Reads the values of `bias`, which synchronizes the device."""
    return visible is not None or (bias is not None and bias.detach().amin().item() == -math.inf)


def empty_gradients(
    q: Tensor, k: Tensor, v: Tensor | None, v_hat: Tensor, bias: Tensor | None, *_: Any
) -> tuple[Tensor, ...]:
    """Return uninitialized gradients: v's is empty without values, the bias's if it is not needed, the mask's always."""
    to_bias = q.new_empty(0) if bias is None else torch.empty_like(bias, memory_format=torch.contiguous_format)
    return or_empty(q, q), or_empty(k, k), or_empty(k, v), or_empty(k, v_hat), to_bias, q.new_empty(0)


def or_empty(side: Tensor, values: Tensor | None) -> Tensor:
    """Return empty heads with the width of `values`; an empty tensor if there are no values."""
    return side.new_empty(0) if values is None else empty_heads(side, values)


def flops(q: Any, k: Any, v: Any, v_hat: Any, *_: Any) -> int:
    """Count the FLOPs of the scores, A v and L v_hat, each once, even if they are recomputed."""
    batch, heads, nq, dk = q
    return int(2 * batch * heads * nq * k[2] * (dk + (0 if v is None else v[-1]) + v_hat[-1]))


#: decorator of an implementation's forward
two_way_op = partial(custom_op, formula=formula, gradients=empty_gradients, flops=flops, results=2, needs=4)


def _whole_outputs(q: Tensor, k: Tensor, v: Tensor | None, v_hat: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return or_empty(q, v), empty_heads(q, v_hat)


def _whole_backward(to_outputs: Any, operands: Any, saved: Any, scale: float, needs_bias: bool) -> tuple[Tensor, ...]:
    with torch.autocast(to_outputs[1].device.type, enabled=False):
        (to_attended, to_u), (q, k, v, v_hat, bias, visible) = to_outputs, operands
        scores = Scores(q, k, bias=bias, visible=visible, scale=scale)
        dtype = scores.dtype
        buffer, spare, third, fourth = (scores.buffer() for _ in range(4))
        to_q, to_k, to_v, to_v_hat, to_bias, none = empty_gradients(q, k, v, v_hat, bias if needs_bias else None)
        sums = to_bias.new_zeros(to_bias.shape, dtype=dtype)
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
            if needs_bias:
                scores.add_bias_gradient(group, ALL, to_scores, sums)
            group.put(to_q, torch.bmm(to_scores, group.of(k, dtype)).mul_(scale))
            group.put(to_k, torch.bmm(to_scores.mT, queries))
        return to_q, to_k, to_v, to_v_hat, to_bias.copy_(sums), none


@two_way_op("two_way_attention_lean", backward=_whole_backward, outputs=_whole_outputs)
def _whole(
    q: Tensor, k: Tensor, v: Tensor | None, v_hat: Tensor, bias: Tensor | None, visible: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Return both directions, group by group, for score matrices that fit the cache; `attended` is empty without values."""
    with torch.autocast(q.device.type, enabled=False):
        scores = Scores(q, k, bias=bias, visible=visible, scale=scale)
        dtype, buffer, spare = scores.dtype, scores.buffer(), scores.buffer()
        attended, u = or_empty(q, v), empty_heads(q, v_hat)
        for group in scores.groups:
            tile = scores.of(group, ALL, scores.queries(group), buffer)
            if v is not None:
                group.put(attended, torch.bmm(scores.softmax(tile, -1, spare), group.of(v, dtype)))
            group.put(u, torch.bmm(scores.softmax(tile, -2, spare), group.of(v_hat, dtype)))
        return attended, u


def _through_softmax(gradient: Tensor, weights: Tensor, dim: int, out: Tensor) -> Tensor:
    """Write the gradient of a softmax's input to `out`, from that of its output `weights`."""
    return torch.ops.aten._softmax_backward_data.out(gradient, weights, dim, weights.dtype, grad_input=out)


def _tiled_outputs(
    q: Tensor, k: Tensor, v: Tensor | None, v_hat: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype = accumulation_dtype(q)
    of_queries = q.new_empty(0 if v is None else (*q.shape[:3], 1), dtype=dtype)
    return or_empty(q, v), empty_heads(q, v_hat), of_queries, k.new_empty(*k.shape[:3], 2, dtype=dtype)


def _tiled_backward(to_outputs: Any, operands: Any, saved: Any, scale: float, needs_bias: bool) -> tuple[Tensor, ...]:
    with torch.autocast(to_outputs[1].device.type, enabled=False):
        (to_attended, to_u), (q, k, v, v_hat, bias, visible) = to_outputs, operands
        attended, of_queries, of_keys = saved
        scores = Scores(q, k, bias=bias, visible=visible, scale=scale, tiled=True)
        dtype, buffer, third = scores.dtype, scores.buffer(), scores.buffer()
        spare = None if v is None else scores.buffer()
        to_q, to_k, to_v, to_v_hat, to_bias, none = empty_gradients(q, k, v, v_hat, bias if needs_bias else None)
        sums = to_bias.new_zeros(to_bias.shape, dtype=dtype)
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
                if needs_bias:
                    scores.add_bias_gradient(group, keys, to_scores, sums)
                to_queries = add_product(to_queries, to_scores, group.of(k[:, :, keys], dtype))
                group.put(to_k[:, :, keys], torch.bmm(to_scores.mT, queries))
            group.put(to_q, to_queries.mul_(scale))
        return to_q, to_k, to_v, to_v_hat, to_bias.copy_(sums), none


@two_way_op("two_way_attention_tiled", backward=_tiled_backward, outputs=_tiled_outputs, saves=(0, 2, 3))
def _tiled(
    q: Tensor, k: Tensor, v: Tensor | None, v_hat: Tensor, bias: Tensor | None, visible: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return both directions, in tiles of keys, for larger score matrices; and the sums that the backward needs.

    These are each query's log-sum-exp (empty without values), and each key's largest score and one over its sum.
    """
    with torch.autocast(q.device.type, enabled=False):
        scores = Scores(q, k, bias=bias, visible=visible, scale=scale, tiled=True)
        dtype, buffer, spare = scores.dtype, scores.buffer(), None if v is None else scores.buffer()
        attended, u, of_queries, of_keys = _tiled_outputs(q, k, v, v_hat)
        for group in scores.groups:
            queries, rows = scores.queries(group), RunningSoftmax(masked=scores.masked)
            received: Any = None
            for keys in scores.steps:
                tile = scores.of(group, keys, queries, buffer)
                if v is not None and spare is not None:
                    rows.add(tile, group.of(v[:, :, keys], dtype), buffer=shaped(spare, *tile.shape))
                largest = largest_score(tile, -2, masked=scores.masked)
                shares = tile.sub_(largest).exp_()
                one_over = as_divisor(shares.sum(-2), masked=scores.masked).reciprocal_().unsqueeze(-1)
                received = add_product(received, shares, group.of(v_hat[:, :, keys], dtype) * one_over)
                group.put(of_keys[:, :, keys], torch.cat([largest.mT, one_over], -1))
            group.put(u, received)
            if v is not None:
                group.put(attended, rows.output())
                group.put(of_queries, rows.log_sums())
        return attended, u, of_queries, of_keys


def _one(rows: Tensor) -> Tensor:
    return torch.ones_like(rows[..., :1])
