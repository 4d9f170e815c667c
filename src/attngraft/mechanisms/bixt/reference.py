"""The equation of bi-directional cross-attention, spelled out: what every faster path is tested against.

Letters: B batch, H heads, M latents, N tokens, d width of the references, dl and dt widths of the latents' and the tokens'
values. One similarity serves both directions:

    A_mn = scale (r_latent_m . r_token_n)
    latents   sum_n softmax over tokens(A)_mn v_token_n      every latent attends to the tokens
    tokens    sum_m softmax over latents(A)_mn v_latent_m    every token attends to the latents

Source: "Perceiving Longer Sequences With Bi-Directional Cross-Attention Transformers".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def similarity(r_latents: Tensor, r_tokens: Tensor, *, scale: float) -> Tensor:
    """A (B, H, M, N)."""
    return (r_latents * scale) @ r_tokens.transpose(-2, -1)


def attention_maps(r_latents: Tensor, r_tokens: Tensor, *, scale: float) -> tuple[Tensor, Tensor]:
    """Latents to tokens (B, H, M, N), each latent's row with sum 1, and tokens to latents (B, H, N, M), likewise."""
    found = similarity(r_latents, r_tokens, scale=scale)
    return torch.softmax(found, -1), torch.softmax(found.transpose(-2, -1), -1)


def bidirectional_attention(
    r_latents: Tensor,
    r_tokens: Tensor,
    v_latents: Tensor,
    v_tokens: Tensor,
    *,
    scale: float,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Latents (B, H, M, dt) and tokens (B, H, N, dl). `dropout` falls on either direction's map, on each by itself."""
    to_tokens, to_latents = attention_maps(r_latents, r_tokens, scale=scale)
    if dropout:
        to_tokens, to_latents = F.dropout(to_tokens, dropout), F.dropout(to_latents, dropout)
    return to_tokens @ v_tokens, to_latents @ v_latents
