"""Context broadcasting as one Triton kernel: each program averages over the tokens, then writes.

The map is symmetric, so the same kernel is the backward. Import this module only if Triton is available.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from attngraft.dispatch.autograd import register_flops

BLOCK_TOKENS, BLOCK_CHANNELS = 64, 64


@triton.jit
def _broadcast_kernel(  # type: ignore[no-untyped-def]
    x_ptr, scale_ptr, out_ptr, mean_ptr, tokens, channels,
    HAS_SCALE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """Process one batch entry (axis 0 of the grid) and one block of channels (axis 1)."""
    batch = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channel < channels
    first = batch * tokens * channels
    total = tl.zeros((BLOCK_C,), dtype=tl.float32)
    for start in range(0, tokens, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        pointers = first + token[:, None] * channels + channel[None, :]
        mask = (token[:, None] < tokens) & inside[None, :]
        total += tl.sum(tl.load(x_ptr + pointers, mask=mask, other=0.0).to(tl.float32), axis=0)
    mean = total / tokens
    tl.store(mean_ptr + batch * channels + channel, mean, mask=inside)
    if HAS_SCALE:
        keep = 1.0
        row = mean * tl.load(scale_ptr + channel, mask=inside, other=0.0).to(tl.float32)
    else:
        keep = 0.5
        row = mean * 0.5
    for start in range(0, tokens, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        pointers = first + token[:, None] * channels + channel[None, :]
        mask = (token[:, None] < tokens) & inside[None, :]
        tile = tl.load(x_ptr + pointers, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + pointers, (tile * keep + row[None, :]).to(out_ptr.dtype.element_ty), mask=mask)


@torch.library.custom_op("attngraft::context_broadcast", mutates_args=())
def broadcast(x: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return (x_i + mean x) / 2, or x_i + scale * mean x with a scale; and the mean (B, C) in float32."""
    x = x.contiguous()
    out = torch.empty_like(x)
    mean = x.new_empty((x.shape[0], x.shape[-1]), dtype=torch.float32)
    tokens, channels = x.shape[1:-1].numel(), x.shape[-1]
    if x.numel():
        grid = (x.shape[0], triton.cdiv(channels, BLOCK_CHANNELS))
        with torch.cuda.device_of(x):
            _broadcast_kernel[grid](
                *(x, mean if scale is None else scale.contiguous(), out, mean, tokens, channels),
                HAS_SCALE=scale is not None,
                BLOCK_N=BLOCK_TOKENS,
                BLOCK_C=BLOCK_CHANNELS,
            )
    return out, mean


@broadcast.register_fake
def _(x: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    return out, x.new_empty((x.shape[0], x.shape[-1]), dtype=torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor | None], output: tuple[Tensor, Tensor]) -> None:
    x, scale = inputs
    ctx.save_for_backward(scale, output[1])
    ctx.tokens = x.shape[1:-1].numel()
    ctx.spread = (x.shape[0], *(1 for _ in x.shape[1:-1]), x.shape[-1])  # the mean's shape with token axes of size 1


def _backward(ctx: Any, gradient: Tensor, mean_gradient: Tensor) -> tuple[Tensor, Tensor | None]:
    scale, mean = ctx.saved_tensors
    to_tokens, average = broadcast(gradient, scale)
    to_tokens = to_tokens + (mean_gradient / ctx.tokens).view(ctx.spread).to(gradient.dtype)
    to_scale = None if scale is None else ((average * mean).sum(0) * ctx.tokens).to(scale.dtype)
    return to_tokens, to_scale


broadcast.register_autograd(_backward, setup_context=_setup_context)
register_flops("context_broadcast", lambda *shapes, **_: 0)  # elementwise operations and a mean count as 0


def context_broadcast(x: Tensor, scale: Tensor | None = None) -> Tensor:
    """Return (x_i + mean x) / 2, or x_i + scale * mean x."""
    return broadcast(x, scale)[0]
