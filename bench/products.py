"""Lower bound of the cost of horizontal and vertical attention: their matrix products alone.

The replacements return the tokens unchanged and compute the products of forward and backward on the real inputs, so that a
training step has the same products, saved tensors and parameters to update, but no elementwise operations. Their cost is a
lower bound for any implementation with torch's matrix products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attngraft.mechanisms.horizontal_vertical.layer import HorizontalAttention, VerticalAttention


def products_only(model: nn.Module) -> nn.Module:
    """Replace horizontal and vertical attention of `model` by their products, in place."""
    for module in model.modules():
        if isinstance(module, HorizontalAttention):
            module.forward = _horizontal(module)  # type: ignore[method-assign]
        elif isinstance(module, VerticalAttention):
            module.forward = _vertical(module)  # type: ignore[method-assign]
    return model


def _horizontal(module: HorizontalAttention) -> Any:
    weights = module.head.weight, module.context.weight, module.score.weight
    return lambda heads, x: _HorizontalProducts.apply(heads, x, *weights)


def _vertical(module: VerticalAttention) -> Any:
    weights = module.context.weight, module.merged.weight, module.gate.weight
    return lambda merged, x: _VerticalProducts.apply(merged, x, *weights)


class _HorizontalProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor, x: Tensor, head: Tensor, context: Tensor, score: Tensor) -> Tensor:
        rows = heads.transpose(1, 2).reshape(-1, heads.shape[-1])
        hidden = torch.mm(rows, head.t())
        shared = torch.mm(x.reshape(-1, x.shape[-1]), context.t())
        torch.mm(hidden, score.t())
        ctx.save_for_backward(rows, x, head, context, score, hidden, shared)
        return heads.view(heads.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        rows, x, head, context, _, hidden, shared = ctx.saved_tensors
        to_heads = gradient.transpose(1, 2).reshape(rows.shape)
        to_context = torch.mm(shared.t(), x.reshape(-1, x.shape[-1]))
        to_x = torch.mm(shared, context).view(x.shape)
        to_head = torch.mm(hidden.t(), rows)
        to_score = torch.mm(rows[:, :1].t(), hidden)
        to_heads = torch.addmm(to_heads, hidden, head, alpha=1e-6).view(gradient.transpose(1, 2).shape)
        return to_heads.transpose(1, 2), to_x, to_head, to_context, to_score


class _VerticalProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, merged: Tensor, x: Tensor, context: Tensor, merged_weight: Tensor, gate: Tensor) -> Tensor:
        rows = merged.reshape(-1, merged.shape[-1])
        hidden = torch.mm(x.reshape(rows.shape), context.t())
        torch.addmm(hidden, rows, merged_weight.t(), out=hidden)
        torch.mm(hidden, gate.t())
        ctx.save_for_backward(rows, x, context, merged_weight, gate, hidden)
        return merged.view(merged.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        rows, x, context, merged_weight, gate, hidden = ctx.saved_tensors
        to_gate = gradient.reshape(rows.shape)
        to_hidden = torch.mm(to_gate, gate)
        to_merged = torch.addmm(to_gate, to_hidden, merged_weight, alpha=1e-6)
        return (
            to_merged.view(gradient.shape),
            torch.mm(to_hidden, context).view(x.shape),
            torch.mm(to_hidden.t(), x.reshape(rows.shape)),
            torch.mm(to_hidden.t(), rows),
            torch.mm(hidden.t(), to_gate).t(),
        )
