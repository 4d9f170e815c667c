"""The hypernetwork of inverse attention as Triton kernels: rows times G slice by slice, without a matrix per query.

A row is one token of one head. With G_a = G[a] (s x dv) and g the gradient of the output,

    out_i = sum_a u_i[a] (q_hat_i G_a)
    T_ia = g_i G_a^T,    du_i[a] = T_ia . q_hat_i,    dq_hat_i = sum_a u_i[a] T_ia,    dG_a = sum_i u_i[a] q_hat_i (x) g_i

The sum over rows in dG is split into parts that are added in a fixed order. Sums are float32; so are products of float32
operands ("ieee", not TF32). Import this module only if Triton is available.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from attngraft.dispatch.autograd import cast_for_autocast
from attngraft.mechanisms.bisa.hyper import hyper_op
from attngraft.mechanisms.bisa.triton_kernels import PRECISION
from attngraft.mechanisms.common import as_rows, empty_heads
from attngraft.mechanisms.triton_rows import matmul

#: number of programs that fills a large GPU, see `triton.PROGRAMS`
PROGRAMS = 1024


@triton.jit
def load_matrix(pointer, rows, count, WIDTH: tl.constexpr):
    """Load rows of a contiguous matrix (count, WIDTH), WIDTH rounded up as tl.dot requires; zeros out of range."""
    lane = tl.arange(0, max(16, triton.next_power_of_2(WIDTH)))[None, :]
    inside = (rows[:, None] < count) & (lane < WIDTH)
    return tl.load(pointer + rows[:, None].to(tl.int64) * WIDTH + lane, mask=inside, other=0.0)


@triton.jit
def store_matrix(pointer, value, rows, count, WIDTH: tl.constexpr):
    lane = tl.arange(0, max(16, triton.next_power_of_2(WIDTH)))[None, :]
    inside = (rows[:, None] < count) & (lane < WIDTH)
    tl.store(pointer + rows[:, None].to(tl.int64) * WIDTH + lane, value.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def transform_kernel(u, q_hat, hyper, out, rows, S: tl.constexpr, DV: tl.constexpr, BLOCK: tl.constexpr):
    """Compute `out` for a tile of rows."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wide = tl.arange(0, max(16, triton.next_power_of_2(S)))
    query = load_matrix(q_hat, row, rows, S)
    total = tl.zeros((BLOCK, max(16, triton.next_power_of_2(DV))), dtype=tl.float32)
    for a in range(S):
        weight = tl.load(u + row.to(tl.int64) * S + a, mask=row < rows, other=0.0).to(tl.float32)
        total += weight[:, None] * matmul(query, load_matrix(hyper + a * S * DV, wide, S, DV), PRECISION)
    store_matrix(out, total, row, rows, DV)


@triton.jit
def row_gradient_kernel(
    u, q_hat, hyper, gradient, du, dq_hat, rows, S: tl.constexpr, DV: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Compute du and dq_hat for a tile of rows."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wide = tl.arange(0, max(16, triton.next_power_of_2(S)))
    query = load_matrix(q_hat, row, rows, S).to(tl.float32)
    to_out = load_matrix(gradient, row, rows, DV)
    to_u = tl.zeros((BLOCK, max(16, triton.next_power_of_2(S))), dtype=tl.float32)
    to_query = tl.zeros((BLOCK, max(16, triton.next_power_of_2(S))), dtype=tl.float32)
    for a in range(S):
        weight = tl.load(u + row.to(tl.int64) * S + a, mask=row < rows, other=0.0).to(tl.float32)
        through = matmul(to_out, tl.trans(load_matrix(hyper + a * S * DV, wide, S, DV)), PRECISION)
        to_u = tl.where(wide[None, :] == a, tl.sum(through * query, 1)[:, None], to_u)
        to_query += weight[:, None] * through
    store_matrix(du, to_u, row, rows, S)
    store_matrix(dq_hat, to_query, row, rows, S)


@triton.jit
def hyper_gradient_kernel(
    u, q_hat, gradient, parts, rows, per_part,
    S: tl.constexpr, DV: tl.constexpr, SLICES: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Compute dG for SLICES values of a (grid axis 0) and one part of the rows (grid axis 1): `parts` (parts, s, s, dv)."""
    WIDE: tl.constexpr = max(16, triton.next_power_of_2(S))
    first = tl.program_id(1) * per_part
    last = tl.minimum(first + per_part, rows)
    slices = tl.program_id(0) * SLICES + tl.arange(0, SLICES)
    total = tl.zeros((SLICES * WIDE, max(16, triton.next_power_of_2(DV))), dtype=tl.float32)
    for start in range(first, last, BLOCK):
        row = start + tl.arange(0, BLOCK)
        inside = (row[:, None] < last) & (slices[None, :] < S)
        weight = tl.load(u + row[:, None].to(tl.int64) * S + slices[None, :], mask=inside, other=0.0).to(tl.float32)
        query, to_out = load_matrix(q_hat, row, last, S).to(tl.float32), load_matrix(gradient, row, last, DV)
        outer = tl.reshape(weight[:, :, None] * query[:, None, :], (BLOCK, SLICES * WIDE))
        total += matmul(tl.trans(outer.to(to_out.dtype)), to_out, PRECISION)
    index = tl.arange(0, SLICES * WIDE)
    a, b = tl.program_id(0) * SLICES + index // WIDE, index % WIDE
    lane = tl.arange(0, max(16, triton.next_power_of_2(DV)))[None, :]
    start = parts + tl.program_id(1).to(tl.int64) * S * S * DV
    inside = ((a < S) & (b < S))[:, None] & (lane < DV)
    tl.store(start + (a * S + b)[:, None] * DV + lane, total, mask=inside)


def tiles(width: int, dtype: torch.dtype) -> dict[str, int]:
    """Return rows per tile and launch options for up to `width` channels, within the limits of `triton.tiles`."""
    if dtype == torch.float32 or width > 64:
        return {"BLOCK": 16 if dtype == torch.float32 and width > 64 else 32, "num_warps": 8, "num_stages": 1}
    return {"BLOCK": 64, "num_warps": 4, "num_stages": 2}


def _transform_backward(to_outputs: Any, operands: Any, saved: Any) -> tuple[Tensor, ...]:
    """Return du, dq_hat and dG."""
    (gradient,), (u, q_hat, hyper) = to_outputs, operands
    du, dq_hat, rows = empty_heads(u, u), empty_heads(u, u), u.shape[:3].numel()
    if not rows:
        return du, dq_hat, torch.zeros_like(hyper, memory_format=torch.contiguous_format)
    widths: dict[str, int] = {"S": len(hyper), "DV": hyper.shape[2]}
    options = tiles(max(hyper.shape), u.dtype)
    in_rows, query, to_out = as_rows(u), as_rows(q_hat), as_rows(gradient)
    slices = max(1, 128 // max(16, triton.next_power_of_2(len(hyper))))
    groups = triton.cdiv(len(hyper), slices)
    per_part = triton.cdiv(rows, max(1, PROGRAMS // groups))
    per_part = triton.cdiv(per_part, options["BLOCK"]) * options["BLOCK"]
    parts = u.new_empty((triton.cdiv(rows, per_part), *hyper.shape), dtype=torch.float32)
    with torch.cuda.device_of(u):
        row_gradient_kernel[(triton.cdiv(rows, options["BLOCK"]),)](
            in_rows, query, hyper.contiguous(), to_out, du, dq_hat, rows, **widths, **options
        )
        hyper_gradient_kernel[(groups, len(parts))](
            in_rows, query, to_out, parts, rows, per_part, SLICES=slices, **widths, **options
        )
    return du, dq_hat, parts.sum(0).to(hyper.dtype)


@hyper_op("hyper_transform", backward=_transform_backward)
def transform(u: Tensor, q_hat: Tensor, hyper: Tensor) -> Tensor:
    """Return the transformed heads (B, H, N, dv)."""
    out, rows = empty_heads(u, hyper), u.shape[:3].numel()
    if rows:
        options = tiles(max(hyper.shape), u.dtype)
        with torch.cuda.device_of(u):
            transform_kernel[(triton.cdiv(rows, options["BLOCK"]),)](
                as_rows(u), as_rows(q_hat), hyper.contiguous(), out, rows, S=len(hyper), DV=hyper.shape[2], **options
            )
    return out


def hyper_transform(u: Tensor, q_hat: Tensor, hyper: Tensor) -> Tensor:
    """Return (B, H, N, dv), in memory as (B, N, H, dv)."""
    u, q_hat, hyper = cast_for_autocast(u, q_hat, hyper)
    return transform(u, q_hat, hyper)
