"""Bi-directional cross-attention as Triton kernels, forward and backward.

Each tile of tokens is read once and serves both directions, without an M x N map in memory.

With few images and heads, the tokens are split into parts, one program each. The parts' results for the latents are combined
here in a fixed order, so the kernels are deterministic.
Import this module only if Triton is available.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from attngraft.dispatch.autograd import cast_for_autocast
from attngraft.mechanisms.bixt import triton_kernels as kernels
from attngraft.mechanisms.bixt.formula import empty_gradients, empty_outputs, two_way_op
from attngraft.mechanisms.triton_rows import operand

#: number of programs that fills a large GPU; the tokens are split into parts to reach it
PROGRAMS = 1024


def tiles(latents: int, width: int, dtype: torch.dtype) -> dict[str, int]:
    """Return tile sizes and launch options; `latents` and `width`, that of the widest operand, are powers of two.

    A program then fits the shared memory of every GPU of compute capability 8.0 or newer. Only the float32 backward with
    many, wide latents spills more than a few registers.
    """
    numbers = latents * width
    if dtype == torch.float32:  # IEEE float32 products do not run on tensor cores
        if numbers > 64 * 64:
            return {"BLOCK_N": 16, "PIECE": 16, "num_warps": 16, "num_stages": 1}
        return {"BLOCK_N": 32 if numbers <= 64 * 32 else 16, "PIECE": 0, "num_warps": 8, "num_stages": 1}
    if numbers > 128 * 64:
        return {"BLOCK_N": 16, "PIECE": 64, "num_warps": 8, "num_stages": 1}
    return {"BLOCK_N": 32, "PIECE": 0, "num_warps": 4 if max(latents, width) <= 64 else 8, "num_stages": 2}


def _power(size: int) -> int:
    """Return the smallest power of two that is at least `size` and that tl.dot accepts."""
    return max(16, triton.next_power_of_2(size))


class _Launch(NamedTuple):
    """The layout of a call: a program per image, head and part of the tokens."""

    batch: int
    sizes: tuple[int, int, int]  #: heads, M, N
    parts: int
    per_part: int  #: tokens
    options: dict[str, int]

    @property
    def grid(self) -> tuple[int]:
        return (self.batch * self.sizes[0] * self.parts,)

    def empty_parts(self, tensor: Tensor, *width: int) -> Tensor:
        """Return empty results for the latents, one per part: (B, H, parts, M) or (B, H, parts, M, width)."""
        heads, latents, _ = self.sizes
        return tensor.new_empty((self.batch, heads, self.parts, latents, *width), dtype=torch.float32)


def _launch(r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor) -> _Launch:
    (batch, heads, tokens, width), latents = r_tokens.shape, r_latents.shape[2]
    widths = {"D": width, "DL": v_latents.shape[-1], "DT": v_tokens.shape[-1]}
    options = tiles(_power(latents), _power(max(widths.values())), r_tokens.dtype)
    tiled = triton.cdiv(tokens, options["BLOCK_N"])
    per_part = triton.cdiv(tiled, max(1, PROGRAMS // (batch * heads))) * options["BLOCK_N"]
    parts = triton.cdiv(tokens, per_part)
    return _Launch(batch, (heads, latents, tokens), parts, per_part, {**widths, **options, "BLOCK_M": _power(latents)})


def _operands(r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor) -> list[tuple[Any, ...] | None]:
    """Return the arguments of the kernels; latents with batch size 1 are read again for every image."""
    images = (len(r_tokens), -1, -1, -1)
    return [operand(tensor) for tensor in (r_latents.expand(images), r_tokens, v_latents.expand(images), v_tokens)]


def _attend_backward(to_outputs: Any, operands: Any, saved: Any, scale: float) -> tuple[Tensor, ...]:
    (dlatents, dtokens), (r_latents, r_tokens, v_latents, _), (latents, lse) = to_outputs, operands, saved
    gradients = dr_latents, dr_tokens, dv_latents, dv_tokens = empty_gradients(*operands)
    if not (lse.numel() and r_tokens.shape[2]):
        return tuple(gradient.zero_() for gradient in gradients)
    launch = _launch(*operands)
    to_r, to_v = launch.empty_parts(r_tokens, r_latents.shape[-1]), launch.empty_parts(r_tokens, v_latents.shape[-1])
    dot = (dlatents.float() * latents.float()).sum(-1).contiguous()
    with torch.cuda.device_of(r_tokens):
        kernels.backward_kernel[launch.grid](
            *_operands(*operands),
            *(operand(dlatents), operand(dtokens), lse, dot),
            *(to_r, operand(dr_tokens), to_v, operand(dv_tokens)),
            *(launch.sizes, launch.per_part, scale),
            **launch.options,
        )
    dr_latents.copy_(to_r.sum(2).sum_to_size(r_latents.shape))
    dv_latents.copy_(to_v.sum(2).sum_to_size(v_latents.shape))
    return gradients


@two_way_op("bidirectional_attention", backward=_attend_backward)
def attend(
    r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return latents, tokens, and in float32 the log-sum-exp of the latents (B, H, M)."""
    latents, tokens, lse = empty_outputs(r_latents, r_tokens, v_latents, v_tokens)
    if not (lse.numel() and r_tokens.shape[2]):  # empty sums
        return latents.zero_(), tokens.zero_(), lse.zero_()
    launch = _launch(r_latents, r_tokens, v_latents, v_tokens)
    by_part, lse_by_part = launch.empty_parts(r_tokens, v_tokens.shape[-1]), launch.empty_parts(r_tokens)
    with torch.cuda.device_of(r_tokens):
        kernels.forward_kernel[launch.grid](
            *_operands(r_latents, r_tokens, v_latents, v_tokens),
            *(by_part, lse_by_part, operand(tokens)),
            *(launch.sizes, launch.per_part, scale),
            **launch.options,
        )
    lse = torch.logsumexp(lse_by_part, 2)
    latents.copy_((by_part * (lse_by_part - lse.unsqueeze(2)).exp().unsqueeze(-1)).sum(2))
    return latents, tokens, lse


def bidirectional_attention(
    r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """Return latents (B, H, M, dt) and tokens (B, H, N, dl), in memory as (B, M, H, dt) and (B, N, H, dl)."""
    latents, tokens, _ = attend(*cast_for_autocast(r_latents, r_tokens, v_latents, v_tokens), float(scale))
    return latents, tokens
