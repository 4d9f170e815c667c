"""The equations of bi-directional cross-attention, spelled out; every faster path is tested against them.

Letters: B batch, H heads, M latents, N tokens, d width of the references, dl and dt widths of the latents' and the tokens'
values. One similarity serves both directions:

    A_mn = scale (r_latent_m . r_token_n)
    latents   sum_n softmax over tokens(A)_mn v_token_n      every latent attends to the tokens
    tokens    sum_m softmax over latents(A)_mn v_latent_m    every token attends to the latents

Shapes: r_latents (b, H, M, d), r_tokens (B, H, N, d), v_latents (b, H, M, dl), v_tokens (B, H, N, dt), where b is B, or 1
for latents that all images share; d = dl = dt in `projected_attention`.

Source: "Perceiving Longer Sequences With Bi-Directional Cross-Attention Transformers".
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def similarity(r_latents: Tensor, r_tokens: Tensor, *, scale: float) -> Tensor:
    """Return A (B, H, M, N)."""
    return (r_latents * scale) @ r_tokens.transpose(-2, -1)


def attention_maps(r_latents: Tensor, r_tokens: Tensor, *, scale: float) -> tuple[Tensor, Tensor]:
    """Return the maps latents to tokens (B, H, M, N) and tokens to latents (B, H, N, M); rows sum to 1."""
    scores = similarity(r_latents, r_tokens, scale=scale)
    return torch.softmax(scores, -1), torch.softmax(scores.transpose(-2, -1), -1)


def bidirectional_attention(
    r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor, *, scale: float, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Compute both directions of A = scale r_latents r_tokens^T; shapes as above.

    Args:
        dropout: dropout probability of the maps' entries, independent in each direction; 0 outside training. With dropout
            both maps are stored, M x N numbers per head.

    Returns:
        softmax over tokens(A) v_tokens (B, H, M, dt), and softmax over latents(A) v_latents (B, H, N, dl).

    Raises:
        UsageError: an operand has another shape, or `dropout` is outside [0, 1).
        BackendError: the backend cannot be used here.
    """
    to_tokens, to_latents = attention_maps(r_latents, r_tokens, scale=scale)
    if dropout:
        to_tokens, to_latents = F.dropout(to_tokens, dropout), F.dropout(to_latents, dropout)
    return to_tokens @ v_tokens, to_latents @ v_latents


def projected_attention(
    r_latents: Tensor,
    v_latents: Tensor,
    tokens: Tensor,
    in_weight: Tensor,
    in_bias: Tensor | None,
    out_weight: Tensor,
    out_bias: Tensor,
    *,
    scale: float,
    attention: Callable[..., tuple[Tensor, Tensor]] = bidirectional_attention,
) -> tuple[Tensor, Tensor]:
    """Project tokens, apply `bidirectional_attention`, and project its token output.

        r_tokens, v_tokens = in_weight tokens + in_bias, split into heads
        output = out_weight (token output of the attention, heads joined) + out_bias

    If there are many tokens, the eager backend on the CPU never stores the references, values and maps of all tokens, in
    forward or backward: the only tensors of the size of the tokens are the output and, in training, the gradient.

    Args:
        tokens: (B, N, c).
        in_weight: (2 H d, c), rows of the references before those of the values, each by head.
        in_bias: (2 H d).
        out_weight: (c', H d).
        out_bias: (c').
        attention: the implementation of `bidirectional_attention` to use.

    Returns:
        Latents (B, H, M, d), not projected, and tokens (B, N, c').

    Raises the same errors as `bidirectional_attention`.
    """

    # a function, so that references and values are freed before the projection
    def attended() -> tuple[Tensor, Tensor]:
        parts = F.linear(tokens, in_weight, in_bias).view(*tokens.shape[:2], 2, r_latents.shape[1], r_latents.shape[3])
        r_tokens, v_tokens = parts.permute(2, 0, 3, 1, 4).unbind(0)
        return attention(r_latents, r_tokens, v_latents, v_tokens, scale=scale)

    latents, heads = attended()
    return latents, F.linear(heads.transpose(1, 2).flatten(2), out_weight, out_bias)
