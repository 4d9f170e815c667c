"""The equations of context broadcasting, spelled out: what every faster path is tested against.

`x` is (B, N, C) or (B, H, W, C): all axes between the first and the last are tokens. The first `prefix` tokens (class,
distillation, registers) are left out of the context and left as they are; 0 treats all tokens alike, as the paper does.
The class token x_0 is token 0, prefix or not.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Context = Literal["mean", "max", "class"]


def context_of(x: Tensor, *, context: Context = "mean", prefix: int = 0) -> Tensor:
    """What is broadcast, with the token axes kept at size 1: mean_j x_j, max_j x_j per channel, or x_0."""
    axes = tuple(range(1, x.ndim - 1))
    if context == "class":
        return x[:, :1]
    others = x[:, prefix:]
    return others.mean(axes, keepdim=True) if context == "mean" else others.amax(axes, keepdim=True)


def context_broadcast(x: Tensor, *, context: Context = "mean", prefix: int = 0) -> Tensor:
    """(x_i + context) / 2 (Eq. 1; max and class: Table 10)."""
    mixed = (x[:, prefix:] + context_of(x, context=context, prefix=prefix)) / 2
    return torch.cat([x[:, :prefix], mixed], dim=1)


def scaled_context_broadcast(x: Tensor, scale: Tensor, *, context: Context = "mean", prefix: int = 0) -> Tensor:
    """x_i + Lambda * context, Lambda (C) elementwise, without halving (Sec. 2.2)."""
    mixed = x[:, prefix:] + scale * context_of(x, context=context, prefix=prefix)
    return torch.cat([x[:, :prefix], mixed], dim=1)


def context_gate(x: Tensor, *, prefix: int = 0) -> Tensor:
    """x_i * (x_0 + 1) (Appendix B.6)."""
    return torch.cat([x[:, :prefix], x[:, prefix:] * (x[:, :1] + 1)], dim=1)


def context_hybrid(x: Tensor, *, prefix: int = 0) -> Tensor:
    """x_i * x_0 + (x_i + mean_j x_j) / 2 (Appendix B.6)."""
    gated = x[:, prefix:] * x[:, :1]
    mixed = gated + (x[:, prefix:] + context_of(x, prefix=prefix)) / 2
    return torch.cat([x[:, :prefix], mixed], dim=1)


def squeeze_excitation(
    x: Tensor,
    squeeze: Tensor,
    excite: Tensor,
    squeeze_bias: Tensor | None = None,
    excite_bias: Tensor | None = None,
) -> Tensor:
    """x * sigmoid(W2 relu(W1 mean_j x_j)), W1 (C/r, C), W2 (C, C/r): the comparison of Tables 2 and 3."""
    return x * excitation(x, squeeze, excite, squeeze_bias, excite_bias)


def excitation(
    x: Tensor,
    squeeze: Tensor,
    excite: Tensor,
    squeeze_bias: Tensor | None = None,
    excite_bias: Tensor | None = None,
) -> Tensor:
    """The gate of `squeeze_excitation`, sigmoid(W2 relu(W1 mean_j x_j)), with the token axes kept at size 1."""
    hidden = context_of(x) @ squeeze.T
    hidden = torch.relu(hidden if squeeze_bias is None else hidden + squeeze_bias)
    gate = hidden @ excite.T
    return torch.sigmoid(gate if excite_bias is None else gate + excite_bias)


def uniform_weights(weights: Tensor, visible: Tensor | None, *, count: int, keep_half: bool = False) -> Tensor:
    """The attention map with its last `count` heads uniform over the keys that each query may see (Table 1).

    `weights` is (B, H, Nq, Nk), `visible` boolean and broadcastable to it, None for all. A query that sees nothing gets
    zeros. With `keep_half` half of the weight stays with the query's own key, so that the head does CB on its values.
    """
    kept, replaced = weights[:, : weights.shape[1] - count], weights[:, weights.shape[1] - count :]
    seen = torch.ones_like(replaced) if visible is None else visible.expand_as(weights)[:, -count:].to(weights.dtype)
    uniform = seen / seen.sum(-1, keepdim=True).clamp_min(1)
    if keep_half:
        uniform = (uniform + torch.eye(*weights.shape[-2:], dtype=weights.dtype, device=weights.device)) / 2
    return torch.cat([kept, uniform], dim=1)
