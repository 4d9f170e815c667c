"""Both directions as plain operations, and functions shared by the custom operations of both backends."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attngraft.dispatch.autograd import accumulation_dtype, custom_op
from attngraft.mechanisms.common import empty_heads


def formula(
    r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute the equation with float32 softmaxes; both maps are (B, H, N, M), which avoids transposed copies."""
    scores = (r_tokens @ (r_latents * scale).transpose(-2, -1)).to(accumulation_dtype(r_tokens))
    latents = torch.softmax(scores, -2).to(v_tokens.dtype).transpose(-2, -1) @ v_tokens
    return latents, torch.softmax(scores, -1).to(v_latents.dtype) @ v_latents


def empty_outputs(
    r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return empty latents (B, H, M, dt), tokens (B, H, N, dl), and the latents' log-sum-exp (B, H, M) in full precision."""
    latents = r_latents.expand(len(r_tokens), -1, -1, -1)
    lse = r_latents.new_empty(latents.shape[:3], dtype=accumulation_dtype(r_latents))
    return empty_heads(latents, v_tokens), empty_heads(r_tokens, v_latents), lse


def empty_gradients(*operands: Tensor) -> tuple[Tensor, ...]:
    """Return empty gradients of the four operands, those of shared latents with a batch of 1."""
    return tuple(empty_heads(operand, operand) for operand in operands)


def flops(r_latents: Any, r_tokens: Any, v_latents: Any, v_tokens: Any, *_: Any) -> int:
    """Count the FLOPs of the similarity and both sums, each once, even if an implementation recomputes its scores."""
    batch, heads, tokens, width = r_tokens
    return int(2 * batch * heads * tokens * r_latents[2] * (width + v_latents[-1] + v_tokens[-1]))


#: decorator of the operation in both backends: latents, tokens and the log-sum-exp of the latents' scores
two_way_op = partial(
    custom_op, formula=formula, outputs=empty_outputs, gradients=empty_gradients, flops=flops, results=2, saves=(0, 2)
)
