"""The equations of context broadcasting, spelled out; every faster path is tested against them.

`x` is (B, N, C) or (B, H, W, C): all axes between the first and the last are tokens. The first `prefix` tokens (class,
distillation, registers) are neither part of the context nor changed; 0 treats all tokens alike, as the paper does.
The class token x_0 is token 0, with or without a prefix. A prefix or a class token requires (B, N, C).
"""

from typing import Literal

import torch
from torch import Tensor

Context = Literal["mean", "max", "class"]


def context_of(x: Tensor, *, context: Context = "mean", prefix: int = 0) -> Tensor:
    """Return the context, with the token axes kept at size 1: mean_j x_j, max_j x_j per channel, or x_0."""
    axes = tuple(range(1, x.ndim - 1))
    if context == "class":
        return x[:, :1]
    others = x[:, prefix:]
    if not others.shape[1:-1].numel():  # no tokens have no mean, and their maximum raises an error
        return others.sum(axes, keepdim=True)
    return others.mean(axes, keepdim=True) if context == "mean" else others.amax(axes, keepdim=True)


def context_broadcast(x: Tensor, *, context: Context = "mean", prefix: int = 0) -> Tensor:
    """Compute CB, (x_i + context) / 2 for every token i (Eq. 1; contexts max and class: Table 10).

    Args:
        x: (B, N, C) or (B, H, W, C).
        context: the mean of all tokens, their maximum per channel, or token 0.

    Raises:
        UsageError: a prefix or a class token is requested for a map.
        BackendError: the backend cannot be used here.
    """
    mixed = (x[:, prefix:] + context_of(x, context=context, prefix=prefix)) / 2
    return torch.cat([x[:, :prefix], mixed], dim=1)


def scaled_context_broadcast(x: Tensor, scale: Tensor, *, context: Context = "mean", prefix: int = 0) -> Tensor:
    """Compute CB_S, x_i + Lambda * context, without halving (Sec. 2.2). `scale` is Lambda (C); same errors as CB."""
    mixed = x[:, prefix:] + scale * context_of(x, context=context, prefix=prefix)
    return torch.cat([x[:, :prefix], mixed], dim=1)


def context_gate(x: Tensor, *, prefix: int = 0) -> Tensor:
    """Compute CB_gate, x_i * (x_0 + 1), for x (B, N, C) (Appendix B.6); same errors as CB."""
    return torch.cat([x[:, :prefix], x[:, prefix:] * (x[:, :1] + 1)], dim=1)


def context_hybrid(x: Tensor, *, prefix: int = 0) -> Tensor:
    """Compute CB_hybrid, x_i * x_0 + (x_i + mean_j x_j) / 2, for x (B, N, C) (Appendix B.6); same errors as CB."""
    gated = x[:, prefix:] * x[:, :1]
    mixed = gated + (x[:, prefix:] + context_of(x, prefix=prefix)) / 2
    return torch.cat([x[:, :prefix], mixed], dim=1)


def squeeze_excitation(
    x: Tensor, squeeze: Tensor, excite: Tensor, squeeze_bias: Tensor | None = None, excite_bias: Tensor | None = None
) -> Tensor:
    """Compute x * sigmoid(W2 relu(W1 mean_j x_j)), the comparison of Tables 2 and 3.

    Args:
        x: (B, N, C) or (B, H, W, C).
        squeeze, excite: W1 (C / r, C) and W2 (C, C / r); biases are optional.
    """
    return x * excitation(x, squeeze, excite, squeeze_bias, excite_bias)


def excitation(
    x: Tensor, squeeze: Tensor, excite: Tensor, squeeze_bias: Tensor | None = None, excite_bias: Tensor | None = None
) -> Tensor:
    """Return the gate of `squeeze_excitation`, sigmoid(W2 relu(W1 mean_j x_j)), with the token axes kept at size 1."""
    hidden = context_of(x) @ squeeze.T
    hidden = torch.relu(hidden if squeeze_bias is None else hidden + squeeze_bias)
    gate = hidden @ excite.T
    return torch.sigmoid(gate if excite_bias is None else gate + excite_bias)


def uniform_weights(weights: Tensor, visible: Tensor | None, *, count: int, keep_half: bool = False) -> Tensor:
    """Make the last `count` heads of an attention map uniform over the keys visible to each query (Table 1).

    Args:
        weights: (B, H, Nq, Nk), rows sum to 1.
        visible: boolean, broadcastable to `weights`; None for all. Rows of queries without visible keys are zero.
        count: 1..H.
        keep_half: put half of the weight on the query's own key (Nq = Nk), which applies CB to the head's values.

    Raises:
        UsageError: `count` is not within 1..H.
    """
    kept, replaced = weights[:, : weights.shape[1] - count], weights[:, weights.shape[1] - count :]
    seen = torch.ones_like(replaced) if visible is None else visible.expand_as(weights)[:, -count:].to(weights.dtype)
    uniform = seen / seen.sum(-1, keepdim=True).clamp_min(1)
    if keep_half:
        uniform = (uniform + torch.eye(*weights.shape[-2:], dtype=weights.dtype, device=weights.device)) / 2
    return torch.cat([kept, uniform], dim=1)
