"""Both directions of score matrices that are too large for the cache: tile by tile, some keys at a time.

A tile has all queries, so the softmax over queries is complete in it: E = exp(S - each key's largest) over its sums Z, where
1 / Z goes to v_hat and L = E / Z is never written. The softmax over keys grows with the tiles, as in flash attention. The
backward makes the tiles once more, and gets each key's largest and sum and each query's log-sum-exp. The softmaxes'
derivatives subtract in one more column of the products:

    dS = A (dsa v^T - D) + L (du v_hat^T - e),    D_i = dsa_i . sa_i,    e_j = dv_hat_j . v_hat_j
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from attngraft.dispatch.formula import Gradients, differentiable, without_autocast
from attngraft.mechanisms.bisa.formula import formula
from attngraft.mechanisms.bisa.groups import Scores, shaped
from attngraft.mechanisms.layout import room


class Tiled(torch.autograd.Function):
    """sa and u, as `eager.two_way_attention`."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor | None, Tensor]:
        q, k, v, v_hat, bias, visible, ctx.scale = inputs
        scores = Scores(q, k, bias=bias, visible=visible, scale=ctx.scale, tiled=True)
        dtype, buffer, spare = scores.dtype, scores.buffer(), None if v is None else scores.buffer()
        attended: Any = None if v is None else room(q, v)
        u = room(q, v_hat)
        of_queries = None if v is None else q.new_empty(*q.shape[:3], 1, dtype=dtype)
        of_keys = k.new_empty(*k.shape[:3], 2, dtype=dtype)
        for group in scores.groups:
            queries, rows = scores.queries(group), _Rows(scores)
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
        scores = Scores(q, k, bias=bias, visible=visible, scale=ctx.scale, tiled=True)
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
                    weights = torch.sub(found, group.of(of_queries), out=shaped(spare, *found.shape)).exp_()
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


class _Rows:
    """The softmax over keys of a group times the values, while the keys come tile by tile."""

    def __init__(self, scores: Scores) -> None:
        self._scores = scores
        self._largest: Any = None  # (n, Nq, 1) of the tiles so far
        self._sums: Any = None  # of exp(S - largest), (n, Nq, 1)
        self._attended: Any = None  # of exp(S - largest) times the values, (n, Nq, dv)

    def add(self, tile: Tensor, values: Tensor, buffer: Tensor) -> None:
        """Take in the scores of some keys (n, Nq, keys) and their values (n, keys, dv)."""
        largest, before = self._scores.largest(tile, -1), self._largest
        self._largest = largest if before is None else torch.maximum(largest, before)
        weights = torch.sub(tile, self._largest, out=shaped(buffer, *tile.shape)).exp_()
        sums = weights.sum(-1, keepdim=True)
        if before is None:
            self._sums, self._attended = sums, torch.bmm(weights, values)
            return
        shrunk = before.sub_(self._largest).exp_()
        self._sums.mul_(shrunk).add_(sums)
        self._attended.mul_(shrunk)
        torch.baddbmm(self._attended, weights, values, out=self._attended)  # its in-place form no counter knows

    def attended(self) -> Tensor:
        """(n, Nq, dv)."""
        return cast(Tensor, self._attended.div_(self._scores.positive(self._sums)))

    def log_sums(self) -> Tensor:
        """log sum over keys of exp(S) (n, Nq, 1); finite where a query sees nothing. After `attended`."""
        return cast(Tensor, self._sums.log_().add_(self._largest))


def _plus(so_far: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """so_far + left @ right, in place where there is something so far."""
    return torch.bmm(left, right) if so_far is None else torch.baddbmm(so_far, left, right, out=so_far)


def _one(rows: Tensor) -> Tensor:
    return torch.ones_like(rows[..., :1])
