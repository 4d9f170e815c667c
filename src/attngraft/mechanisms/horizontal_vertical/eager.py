"""Horizontal and vertical attention in optimized PyTorch.

Both work token by token, on rows (B * N): the heads are read as (B, N, H, dv), the output layout of fused attention and the
input layout of the output projection, so nothing is transposed. The backward passes are explicit: relu's output and alpha
(or beta) are saved, buffers are reused (a new one costs as much as a product with it), the context x W is computed once for
all heads, and the score bias b^B, which cancels in a softmax over heads, is never added; its gradient is zero. On a CPU,
small models spend most of the remaining time in the matrix products, whose inputs a training step has evicted from the
cache, and in the fixed cost of each operation, so the number of operations is
kept small.

The reference runs under a compiler or a function transform, and for higher-order gradients.
"""

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
)
from attngraft.mechanisms.horizontal_vertical import reference


def horizontal_attention(
    heads: Tensor, x: Tensor, head: Tensor, context: Tensor, score: Tensor, score_bias: Tensor, identity: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the weighted heads (B, H, N, dv) and alpha (B, N, H)."""
    tensors = cast_for_autocast(heads, x, head, context, score, score_bias)
    function: Any = _Horizontal.apply
    if is_traced():
        function = reference.horizontal_attention
    elif not torch.is_grad_enabled():  # an autograd function takes long for one token at a time
        function = _weigh_heads
    weighted, alpha, *_ = function(*tensors, identity)
    return weighted, alpha


def vertical_attention(
    merged: Tensor,
    x: Tensor,
    context: Tensor,
    merged_weight: Tensor,
    gate: Tensor,
    gate_bias: Tensor,
    identity: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the gated tokens and beta, both (B, N, C)."""
    tensors = cast_for_autocast(merged, x, context, merged_weight, gate, gate_bias)
    function: Any = _Vertical.apply
    if is_traced():
        function = reference.vertical_attention
    elif not torch.is_grad_enabled():
        function = _gate_channels
    gated, beta, *_ = function(*tensors, identity)
    return gated, beta


def _weigh_heads(
    heads: Tensor, x: Tensor, head: Tensor, context: Tensor, score: Tensor, score_bias: Tensor, identity: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the weighted heads, alpha, and for the backward pass the hidden units and alpha, both in rows."""
    batch, count, tokens, width = heads.shape
    by_token = heads.transpose(1, 2).contiguous().view(-1, count, width)
    hidden = torch.mm(by_token.view(-1, width), head.t())
    shared = torch.mm(x.reshape(-1, x.shape[-1]), context.t())
    hidden.view(-1, count, width).add_(shared.unsqueeze(1)).relu_()
    alpha = torch.softmax(torch.mm(hidden, score.t()).view(-1, count), -1, dtype=accumulation_dtype(heads))
    weighted = by_token * _factor(alpha, identity, heads.dtype)
    alpha_out = alpha.to(heads.dtype).view(batch, tokens, count)
    return weighted.view(batch, tokens, count, width).transpose(1, 2), alpha_out, hidden, alpha


def _gate_channels(
    merged: Tensor,
    x: Tensor,
    context: Tensor,
    merged_weight: Tensor,
    gate: Tensor,
    gate_bias: Tensor,
    identity: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gated tokens, beta, and for the backward pass the hidden units and beta, both in rows."""
    rows = merged.reshape(-1, merged.shape[-1])
    hidden = torch.mm(x.reshape(-1, x.shape[-1]), context.t())
    torch.addmm(hidden, rows, merged_weight.t(), out=hidden).relu_()
    beta = torch.mm(hidden, gate.t()).add_(gate_bias).sigmoid_()  # addmm would first write the bias to every row
    gated = rows * beta
    if identity:
        gated.mul_(2)
    return gated.view(merged.shape), beta.view(merged.shape), hidden, beta


class _Horizontal(torch.autograd.Function):
    """Horizontal attention on rows, which are tokens or (token, head) pairs."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        ctx.identity = inputs[-1]
        weighted, alpha_out, hidden, alpha = _weigh_heads(*inputs)
        ctx.save_for_backward(*inputs[:-1], hidden, alpha)
        ctx.set_materialize_grads(False)
        return weighted, alpha_out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, alpha_gradient: Tensor | None) -> Gradients:
        *inputs, hidden, alpha = ctx.saved_tensors
        if torch.is_grad_enabled():
            plain = partial(reference.horizontal_attention, identity=ctx.identity)
            return *differentiable_gradients(plain, inputs, (gradient, alpha_gradient)), None
        heads, x, head, context, score, score_bias = inputs
        count, width = heads.shape[1], heads.shape[3]
        by_token = heads.transpose(1, 2).contiguous().view(-1, count, width)
        if gradient is None:
            buffer, to_heads, to_alpha = torch.empty_like(by_token), torch.zeros_like(by_token), torch.zeros_like(alpha)
        else:
            gradient = gradient.transpose(1, 2).contiguous().view(by_token.shape)
            buffer = gradient * by_token
            to_alpha = buffer.sum(-1, dtype=alpha.dtype)
            to_alpha = to_alpha.mul_(count) if ctx.identity else to_alpha
            to_heads = gradient * _factor(alpha, ctx.identity, heads.dtype)
        if alpha_gradient is not None:
            to_alpha = to_alpha + alpha_gradient.reshape(alpha.shape)
        to_scores = torch.ops.aten._softmax_backward_data(to_alpha, alpha, -1, alpha.dtype)
        to_scores = to_scores.to(heads.dtype).view(-1, 1)
        to_hidden = torch.mul(to_scores, score, out=buffer.view(-1, width))
        to_hidden = torch.ops.aten.threshold_backward.grad_input(to_hidden, hidden, 0, grad_input=to_hidden)
        to_shared = to_hidden.view(-1, count, width).sum(1)
        torch.addmm(to_heads.view(-1, width), to_hidden, head, out=to_heads.view(-1, width))
        batch, tokens = x.shape[:2]
        return (
            to_heads.view(batch, tokens, count, width).transpose(1, 2),
            torch.mm(to_shared, context).view(x.shape),
            torch.mm(to_hidden.t(), by_token.view(-1, width)),
            torch.mm(to_shared.t(), x.reshape(-1, x.shape[-1])),
            torch.mm(to_scores.t(), hidden),
            torch.zeros_like(score_bias),
            None,
        )


class _Vertical(torch.autograd.Function):
    """Vertical attention on rows, which are tokens."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        ctx.identity = inputs[-1]
        gated, beta_out, hidden, beta = _gate_channels(*inputs)
        ctx.save_for_backward(*inputs[:-1], hidden, beta)
        ctx.set_materialize_grads(False)
        return gated, beta_out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, beta_gradient: Tensor | None) -> Gradients:
        *inputs, hidden, beta = ctx.saved_tensors
        if torch.is_grad_enabled():
            plain = partial(reference.vertical_attention, identity=ctx.identity)
            return *differentiable_gradients(plain, inputs, (gradient, beta_gradient)), None
        merged, x, context, merged_weight, gate, _ = inputs
        rows, x_rows = merged.reshape(beta.shape), x.reshape(-1, x.shape[-1])
        if gradient is None:
            to_gate, to_merged = torch.zeros_like(beta), torch.zeros_like(beta)
        else:
            gradient = gradient.reshape(beta.shape)
            gradient = 2 * gradient if ctx.identity else gradient
            to_gate, to_merged = gradient * rows, gradient * beta
        if beta_gradient is not None:
            to_gate = to_gate.add_(beta_gradient.reshape(beta.shape))
        to_gate = torch.ops.aten.sigmoid_backward.grad_input(to_gate, beta, grad_input=to_gate)
        to_hidden = torch.mm(to_gate, gate)
        to_hidden = torch.ops.aten.threshold_backward.grad_input(to_hidden, hidden, 0, grad_input=to_hidden)
        torch.addmm(to_merged, to_hidden, merged_weight, out=to_merged)
        return (
            to_merged.view(merged.shape),
            torch.mm(to_hidden, context).view(x.shape),
            torch.mm(to_hidden.t(), x_rows),
            torch.mm(to_hidden.t(), rows),
            torch.mm(hidden.t(), to_gate).t(),  # with this order, both factors are read row by row, in half the time
            to_gate.sum(0),
            None,
        )


def _factor(alpha: Tensor, identity: bool, dtype: torch.dtype) -> Tensor:
    """Return the factor of the heads (rows, H, dv)."""
    return (alpha.shape[-1] * alpha if identity else alpha).to(dtype).unsqueeze(-1)
