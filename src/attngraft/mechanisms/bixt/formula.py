"""Both directions as plain operations: for exporters, function transforms, second derivatives and small calls."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.dispatch.formula import accurate


def formula(
    r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """The equation with softmaxes in float32, and the maps as (B, H, N, M): neither is copied to be transposed."""
    found = (r_tokens @ (r_latents * scale).transpose(-2, -1)).to(accurate(r_tokens))
    latents = torch.softmax(found, -2).to(v_tokens.dtype).transpose(-2, -1) @ v_tokens
    return latents, torch.softmax(found, -1).to(v_latents.dtype) @ v_latents


def projected(
    r_latents: Tensor,
    v_latents: Tensor,
    tokens: Tensor,
    in_weight: Tensor,
    in_bias: Tensor | None,
    out_weight: Tensor,
    out_bias: Tensor,
    *,
    attention: Callable[..., tuple[Tensor, Tensor]],
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Tokens (B, N, c) to references and values, `attention`, and what the tokens got to (B, N, c')."""

    # by itself, so that references and values are gone at the output projection
    def attended() -> tuple[Tensor, Tensor]:
        parts = F.linear(tokens, in_weight, in_bias).view(*tokens.shape[:2], 2, r_latents.shape[1], r_latents.shape[3])
        r_tokens, v_tokens = parts.permute(2, 0, 3, 1, 4).unbind(0)
        return attention(r_latents, r_tokens, v_latents, v_tokens, scale=scale)

    latents, got = attended()
    return latents, F.linear(got.transpose(1, 2).flatten(2), out_weight, out_bias)
