"""Both directions of one score matrix as Triton kernels, forward and backward: no N x N matrix in memory.

Forward: the log-sum-exp of the columns, then both sums from one sweep over the scores. Backward: the scores, recomputed from
the saved log-sum-exps of rows and columns. The gradient of a learned bias is summed in a fixed order, without atomics.
Import this module only if Triton is available.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from attngraft.dispatch.autograd import cast_for_autocast
from attngraft.mechanisms.bisa import triton_kernels as kernels
from attngraft.mechanisms.bisa.eager import empty_gradients, or_empty, two_way_op
from attngraft.mechanisms.triton_rows import operand

#: number of programs that fills a large GPU; sums over batch entries that share a bias are split into parts to reach it
PROGRAMS = 1024


def tiles(width: int, dtype: torch.dtype, *, large: bool = True) -> dict[str, int]:
    """Return tile sizes and launch options for operands of up to `width` channels.

    A program then fits the shared memory of every GPU of compute capability 8.0 or newer, and spills few registers.
    `large=False` selects smaller tiles, for the kernel with the largest state.
    """
    if dtype == torch.float32:
        rows = 64 if large and width <= 32 else 32 if width <= 64 else 16
        return {"BLOCK_Q": rows, "BLOCK_K": min(rows, 32), "num_warps": 4, "num_stages": 1}
    if large and width <= 64:
        return {"BLOCK_Q": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3}
    return {"BLOCK_Q": 32, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}


def _masks(bias: Tensor | None, visible: Tensor | None, sizes: tuple[int, ...]) -> tuple[Any, ...]:
    """Return bias and mask with their broadcast strides, without copies, and the number of batch entries of the bias."""
    strided_bias = strided_visible = None
    if bias is not None:
        strided_bias = (bias, *bias.expand(-1, *sizes[1:]).stride())
    if visible is not None:
        visible = visible.expand(sizes).view(torch.uint8)
        strided_visible = (visible, *visible.stride())
    return strided_bias, strided_visible, 1 if bias is None else len(bias)


def _widths(q: Tensor, v: Tensor | None, v_hat: Tensor) -> dict[str, int]:
    return {"DK": q.shape[-1], "DV": 0 if v is None else v.shape[-1], "S": v_hat.shape[-1]}


def _empty_outputs(
    q: Tensor, k: Tensor, v: Tensor | None, v_hat: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    row_lse = q.new_empty(0 if v is None else q.shape[:3], dtype=torch.float32)
    column_lse = q.new_empty(k.shape[:3], dtype=torch.float32)
    return or_empty(q, v), or_empty(q, v_hat), row_lse, column_lse


def _attend_backward(
    to_outputs: Any, operands_and_masks: Any, saved: Any, scale: float, bias_gradient: bool
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k, v (empty without values), v_hat, the bias (empty if not needed) and the mask (empty)."""
    (dsa, du), (q, k, v, v_hat, bias, visible), (sa, row_lse, column_lse) = to_outputs, operands_and_masks, saved
    dq, dk, dv, dv_hat, dbias, none = empty_gradients(q, k, v, v_hat, bias if bias_gradient else None, visible)
    if not (q.numel() and k.numel()):
        return dq.zero_(), dk.zero_(), dv.zero_(), dv_hat.zero_(), dbias.zero_(), none
    (batch, heads, nq), nk = q.shape[:3], k.shape[2]
    dsa = None if v is None else dsa
    operands = [operand(tensor) for tensor in (q, k, v, v_hat, dsa, du)]
    masks, sizes = _masks(bias, visible, (batch, heads, nq, nk)), (heads, nq, nk)
    row_dot = row_lse if dsa is None else (dsa.float() * sa.float()).sum(-1).contiguous()
    lines = (row_lse, row_dot, column_lse, torch.empty_like(column_lse))
    widths = _widths(q, v, v_hat)
    options = tiles(max(widths.values()), q.dtype)
    shared = (*operands, *masks, lines)
    with torch.cuda.device_of(q):
        grid = (batch * heads * triton.cdiv(nk, options["BLOCK_K"]),)
        results = [operand(tensor) for tensor in (dk, dv, dv_hat)]
        kernels.key_gradient_kernel[grid](*shared, *results, sizes, scale, **widths, **options)
        grid = (batch * heads * triton.cdiv(nq, options["BLOCK_Q"]),)
        kernels.query_gradient_kernel[grid](*shared, operand(dq), sizes, scale, **widths, **options)
        if bias is not None and bias_gradient:
            options = tiles(max(widths.values()), q.dtype, large=False)
            tiled = triton.cdiv(nq, options["BLOCK_Q"]) * triton.cdiv(nk, options["BLOCK_K"])
            entries, bias_heads = bias.shape[:2]
            members = (batch // entries) * (heads // bias_heads)  # batch entries and heads with the same bias
            programs = entries * bias_heads * tiled
            per_part = triton.cdiv(members, max(1, min(members, PROGRAMS // programs)))
            parts = q.new_empty((triton.cdiv(members, per_part), entries, bias_heads, nq, nk), dtype=torch.float32)
            kernels.bias_gradient_kernel[(programs, len(parts))](
                *shared, parts, bias_heads, members, per_part, sizes, scale, **widths, **options
            )
            dbias = parts.sum(0).sum_to_size(bias.shape).to(bias.dtype)
    return dq, dk, dv, dv_hat, dbias, none


@two_way_op("two_way_attention", backward=_attend_backward, outputs=_empty_outputs, saves=(0, 2, 3))
def attend(
    q: Tensor, k: Tensor, v: Tensor | None, v_hat: Tensor, bias: Tensor | None, visible: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return sa (empty without values), u, and in float32 the log-sum-exp of rows (empty without values) and of columns."""
    sa, u, row_lse, column_lse = _empty_outputs(q, k, v, v_hat)
    if not (q.numel() and k.numel()):  # empty sums
        return sa.zero_(), u.zero_(), row_lse.zero_(), column_lse.zero_()
    batch, heads, nq, nk = *q.shape[:3], k.shape[2]
    operands = [operand(tensor) for tensor in (q, k, v, v_hat)]
    masks, sizes = _masks(bias, visible, (batch, heads, nq, nk)), (heads, nq, nk)
    widths = _widths(q, v, v_hat)
    options = tiles(max(widths.values()), q.dtype)
    with torch.cuda.device_of(q):
        grid = (batch * heads * triton.cdiv(nk, options["BLOCK_K"]),)
        kernels.column_kernel[grid](*operands[:2], *masks, column_lse, sizes, scale, DK=widths["DK"], **options)
        grid = (batch * heads * triton.cdiv(nq, options["BLOCK_Q"]),)
        kernels.row_kernel[grid](
            *operands, *masks, column_lse, row_lse, operand(sa), operand(u), sizes, scale, **widths, **options
        )
    return sa, u, row_lse, column_lse


def two_way_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    v_hat: Tensor,
    *,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor | None, Tensor]:
    """Return sa (B, H, Nq, dv) and u (B, H, Nq, s), in memory as (B, Nq, H, width)."""
    q, k, v, v_hat = cast_for_autocast(q, k, v, v_hat)
    sa, u, _, _ = attend(q, k, v, v_hat, bias, visible, q.shape[-1] ** -0.5 if scale is None else float(scale))
    return (None if v is None else sa), u
