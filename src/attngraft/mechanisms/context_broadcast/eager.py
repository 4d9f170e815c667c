"""Context broadcasting in optimized PyTorch: one pass to average and one to write, also in the backward.

Averaging over tokens is self-adjoint, so the backward of CB is CB and needs no saved tensors. CB_S saves only the average
(B, C), never the tokens. Averages of half-precision tokens are accumulated in float32, and results have the tokens' dtype.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.mechanisms.context_broadcast.reference import Context, context_of


def _mean(x: Tensor) -> Tensor:
    """Return the mean token with the token axes kept at size 1, in float32 at least; zeros if there are no tokens."""
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else None
    average = x.mean if x.shape[1:-1].numel() else x.sum
    return average(tuple(range(1, x.ndim - 1)), keepdim=True, dtype=dtype)


def _halfway(x: Tensor) -> Tensor:
    return torch.lerp(x, _mean(x).to(x.dtype), 0.5)


class _Halfway(torch.autograd.Function):
    """(x_i + mean x) / 2, a symmetric linear map."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return _halfway(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Save nothing."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Halfway.apply(gradient) if torch.is_grad_enabled() else _halfway(gradient)


class _Scaled(torch.autograd.Function):
    """x_i + Lambda * mean x, and the mean for the backward of Lambda."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        mean = _mean(x)
        return x + (scale * mean).to(x.dtype), mean

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[1], output[1])
        ctx.tokens = inputs[0].shape[1:-1].numel()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, mean_gradient: Tensor) -> tuple[Tensor, Tensor]:
        scale, mean = ctx.saved_tensors
        average = _mean(gradient)
        to_tokens = gradient + (scale * average + mean_gradient / ctx.tokens).to(gradient.dtype)
        to_scale = (average * mean).sum(tuple(range(average.ndim - 1))) * ctx.tokens
        return to_tokens, to_scale.to(scale.dtype)


def context_broadcast(x: Tensor, *, context: Context = "mean", prefix: int = 0) -> Tensor:
    """Return (x_i + context) / 2."""
    patches = x[:, prefix:] if prefix else x
    if context == "mean":
        halfway = _Halfway.apply(patches)
    else:
        halfway = torch.lerp(patches, context_of(x, context=context, prefix=prefix), 0.5)
    return torch.cat([x[:, :prefix], halfway], dim=1) if prefix else halfway


def scaled_context_broadcast(x: Tensor, scale: Tensor, *, context: Context = "mean", prefix: int = 0) -> Tensor:
    """Return x_i + Lambda * context."""
    patches = x[:, prefix:] if prefix else x
    if context == "mean":
        scaled = _Scaled.apply(patches, scale)[0]
    else:
        scaled = patches + (scale * context_of(x, context=context, prefix=prefix)).to(x.dtype)
    return torch.cat([x[:, :prefix], scaled], dim=1) if prefix else scaled


def context_gate(x: Tensor, *, prefix: int = 0) -> Tensor:
    """Return x_i * (x_0 + 1)."""
    patches = x[:, prefix:] if prefix else x
    gated = torch.addcmul(patches, patches, x[:, :1])
    return torch.cat([x[:, :prefix], gated], dim=1) if prefix else gated


def context_hybrid(x: Tensor, *, prefix: int = 0) -> Tensor:
    """Return x_i * (x_0 + 1/2) + mean / 2."""
    patches = x[:, prefix:] if prefix else x
    mixed = torch.addcmul((_mean(patches) / 2).to(x.dtype), patches, x[:, :1] + 0.5)
    return torch.cat([x[:, :prefix], mixed], dim=1) if prefix else mixed


def squeeze_excitation(
    x: Tensor, squeeze: Tensor, excite: Tensor, squeeze_bias: Tensor | None = None, excite_bias: Tensor | None = None
) -> Tensor:
    """Return x * sigmoid(W2 relu(W1 mean))."""
    hidden = F.linear(_mean(x).to(x.dtype), squeeze, squeeze_bias).relu_()
    return x * F.linear(hidden, excite, excite_bias).sigmoid().to(x.dtype)


def uniform_share(visible: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return equal weights over the visible keys, for the last `count` heads; zeros if no key is visible."""
    if visible.ndim >= 3 and visible.shape[-3] > 1:  # a mask for each head
        visible = visible[..., -count:, :, :]
    seen = visible.to(torch.promote_types(dtype, torch.float32))
    return (seen / seen.sum(-1, keepdim=True).clamp_min(1)).to(dtype)


def uniform_weights(weights: Tensor, visible: Tensor | None, *, count: int, keep_half: bool = False) -> Tensor:
    """Return the map with its last `count` heads uniform, computed once per distinct mask."""
    if visible is None:
        uniform = weights.new_full((1, 1, 1, weights.shape[-1]), 1 / max(weights.shape[-1], 1))
    else:
        uniform = uniform_share(visible, count, weights.dtype)
    if keep_half:
        own = torch.eye(*weights.shape[-2:], dtype=weights.dtype, device=weights.device)
        uniform = (uniform + own) / 2
    shape = (weights.shape[0], count, *weights.shape[-2:])
    return torch.cat([weights[:, : weights.shape[1] - count], uniform.expand(shape)], dim=1)
