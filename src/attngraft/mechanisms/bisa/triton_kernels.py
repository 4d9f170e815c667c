"""The Triton kernels of bi-directional attention: two softmaxes of one score matrix, which is never in memory.

    c_j = log sum_i exp S_ij,   r_i = log sum_j exp S_ij,   A_ij = exp(S_ij - r_i),   L_ij = exp(S_ij - c_j)

No exponent is positive, so nothing overflows. With D_i = dsa_i . sa_i and E_j = v_hat_j . dv_hat_j, the gradient of the
scores is dS = A (dsa v^T - D) + L (du v_hat^T - E). c and r are 0 for fully masked columns and rows.

An operand is a tuple (pointer, batch stride, head stride, token stride); its channels are contiguous. `bias` and `visible`
are operands with a fourth stride, or None, and `entries` is the number of batch entries of the bias; not every version of
Triton allows None within a tuple. `sizes` is (heads, Nq, Nk). `lines` is (r, D, c, E), contiguous. A program processes one
tile of queries or of keys and sweeps over the other axis.

Scores, exponentials and sums are float32. Products of float32 operands are sums of three TF32 products, nearly as
accurate as float32; for half precision operands, A, L and dS are rounded to half precision before the products.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from attngraft.mechanisms.triton_rows import (
    finite,
    load_line,
    load_rows,
    matmul,
    nonzero,
    program_index,
    softmax_gradient,
    store_rows,
)

#: of products of float32 operands; Triton for AMD GPUs has no "tf32x3"
PRECISION = tl.constexpr("ieee" if torch.version.hip else "tf32x3")


@triton.jit
def score_tile(query, key, bias, visible, entries, sizes, batch, head, rows, columns, scale):
    """Compute S (BLOCK_Q, BLOCK_K) for a tile of queries and a tile of keys; -inf where masked or out of range."""
    scores = matmul(query, tl.trans(key), PRECISION) * scale
    inside = (rows[:, None] < sizes[1]) & (columns[None, :] < sizes[2])
    row, column = rows[:, None].to(tl.int64), columns[None, :].to(tl.int64)
    if bias is not None:
        first = bias[0] + (batch % entries) * bias[1] + head * bias[2]
        scores += tl.load(first + row * bias[3] + column * bias[4], mask=inside, other=0.0).to(tl.float32)
    if visible is not None:
        first = visible[0] + batch * visible[1] + head * visible[2]
        inside = inside & (tl.load(first + row * visible[3] + column * visible[4], mask=inside, other=0) != 0)
    return tl.where(inside, scores, -float("inf"))


@triton.jit
def column_kernel(
    q, k, bias, visible, entries, column_lse, sizes, scale,
    DK: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """Compute c, the log-sum-exp over queries, for a tile of keys."""
    nq, nk = sizes[1], sizes[2]
    tile, entry, batch, head = program_index(tl.cdiv(nk, BLOCK_K), sizes[0])
    columns = tile * BLOCK_K + tl.arange(0, BLOCK_K)
    key = load_rows(k, batch, head, columns, nk, DK)
    highest = tl.full((BLOCK_K,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_K,), dtype=tl.float32)
    for start in range(0, nq, BLOCK_Q):
        rows = start + tl.arange(0, BLOCK_Q)
        query = load_rows(q, batch, head, rows, nq, DK)
        scores = score_tile(query, key, bias, visible, entries, sizes, batch, head, rows, columns, scale)
        new = tl.maximum(highest, tl.max(scores, 0))
        total = total * tl.exp(highest - finite(new)) + tl.sum(tl.exp(scores - finite(new)[None, :]), 0)
        highest = new
    tl.store(column_lse + entry * nk + columns, finite(highest) + tl.log(nonzero(total)), mask=columns < nk)


@triton.jit
def row_kernel(
    q, k, v, v_hat, bias, visible, entries, column_lse, row_lse, sa, u, sizes, scale,
    DK: tl.constexpr, DV: tl.constexpr, S: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """Compute sa, u and r for a tile of queries; each tile of scores is used for both sums."""
    nq, nk = sizes[1], sizes[2]
    tile, entry, batch, head = program_index(tl.cdiv(nq, BLOCK_Q), sizes[0])
    rows = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    query = load_rows(q, batch, head, rows, nq, DK)
    highest = tl.full((BLOCK_Q,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_Q,), dtype=tl.float32)
    summed = tl.zeros((BLOCK_Q, max(16, triton.next_power_of_2(S))), dtype=tl.float32)
    if v is not None:
        attended = tl.zeros((BLOCK_Q, max(16, triton.next_power_of_2(DV))), dtype=tl.float32)
    for start in range(0, nk, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        key = load_rows(k, batch, head, columns, nk, DK)
        scores = score_tile(query, key, bias, visible, entries, sizes, batch, head, rows, columns, scale)
        share = tl.exp(scores - load_line(column_lse, entry, columns, nk)[None, :])
        value_hat = load_rows(v_hat, batch, head, columns, nk, S)
        summed += matmul(share.to(value_hat.dtype), value_hat, PRECISION)
        if v is not None:
            new = tl.maximum(highest, tl.max(scores, 1))
            keep = tl.exp(highest - finite(new))
            weight = tl.exp(scores - finite(new)[:, None])
            value = load_rows(v, batch, head, columns, nk, DV)
            attended = attended * keep[:, None] + matmul(weight.to(value.dtype), value, PRECISION)
            total = total * keep + tl.sum(weight, 1)
            highest = new
    store_rows(u, summed, batch, head, rows, nq, S)
    if v is not None:
        store_rows(sa, attended / nonzero(total)[:, None], batch, head, rows, nq, DV)
        tl.store(row_lse + entry * nq + rows, finite(highest) + tl.log(nonzero(total)), mask=rows < nq)


@triton.jit
def key_gradient_kernel(
    q, k, v, v_hat, dsa, du, bias, visible, entries, lines, dk, dv, dv_hat, sizes, scale,
    DK: tl.constexpr, DV: tl.constexpr, S: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """Compute dv, dv_hat and E for a tile of keys in one sweep over the queries, then dk, which needs E, in a second one."""
    nq, nk = sizes[1], sizes[2]
    tile, entry, batch, head = program_index(tl.cdiv(nk, BLOCK_K), sizes[0])
    columns = tile * BLOCK_K + tl.arange(0, BLOCK_K)
    key = load_rows(k, batch, head, columns, nk, DK)
    column_lse = load_line(lines[2], entry, columns, nk)
    to_value_hat = tl.zeros((BLOCK_K, max(16, triton.next_power_of_2(S))), dtype=tl.float32)
    if v is not None:
        to_value = tl.zeros((BLOCK_K, max(16, triton.next_power_of_2(DV))), dtype=tl.float32)
    for start in range(0, nq, BLOCK_Q):
        rows = start + tl.arange(0, BLOCK_Q)
        query = load_rows(q, batch, head, rows, nq, DK)
        scores = score_tile(query, key, bias, visible, entries, sizes, batch, head, rows, columns, scale)
        to_u = load_rows(du, batch, head, rows, nq, S)
        to_value_hat += matmul(tl.trans(tl.exp(scores - column_lse[None, :]).to(to_u.dtype)), to_u, PRECISION)
        if v is not None:
            to_sa = load_rows(dsa, batch, head, rows, nq, DV)
            row_lse = load_line(lines[0], entry, rows, nq)
            to_value += matmul(tl.trans(tl.exp(scores - row_lse[:, None]).to(to_sa.dtype)), to_sa, PRECISION)
    store_rows(dv_hat, to_value_hat, batch, head, columns, nk, S)
    value_hat = load_rows(v_hat, batch, head, columns, nk, S)
    column_dot = tl.sum(value_hat.to(tl.float32) * to_value_hat, 1)
    tl.store(lines[3] + entry * nk + columns, column_dot, mask=columns < nk)
    if v is not None:
        store_rows(dv, to_value, batch, head, columns, nk, DV)
        value = load_rows(v, batch, head, columns, nk, DV)
    to_key = tl.zeros((BLOCK_K, max(16, triton.next_power_of_2(DK))), dtype=tl.float32)
    for start in range(0, nq, BLOCK_Q):
        rows = start + tl.arange(0, BLOCK_Q)
        query = load_rows(q, batch, head, rows, nq, DK)
        scores = score_tile(query, key, bias, visible, entries, sizes, batch, head, rows, columns, scale)
        to_u = load_rows(du, batch, head, rows, nq, S)
        gradient = softmax_gradient(
            tl.exp(scores - column_lse[None, :]), to_u, value_hat, column_dot[None, :], PRECISION
        )
        if v is not None:
            to_sa = load_rows(dsa, batch, head, rows, nq, DV)
            weight = tl.exp(scores - load_line(lines[0], entry, rows, nq)[:, None])
            gradient += softmax_gradient(weight, to_sa, value, load_line(lines[1], entry, rows, nq)[:, None], PRECISION)
        to_key += matmul(tl.trans(gradient.to(query.dtype)), query, PRECISION)
    store_rows(dk, to_key * scale, batch, head, columns, nk, DK)


@triton.jit
def query_gradient_kernel(
    q, k, v, v_hat, dsa, du, bias, visible, entries, lines, dq, sizes, scale,
    DK: tl.constexpr, DV: tl.constexpr, S: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """Compute dq for a tile of queries."""
    nq, nk = sizes[1], sizes[2]
    tile, entry, batch, head = program_index(tl.cdiv(nq, BLOCK_Q), sizes[0])
    rows = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    query = load_rows(q, batch, head, rows, nq, DK)
    to_u = load_rows(du, batch, head, rows, nq, S)
    if v is not None:
        to_sa = load_rows(dsa, batch, head, rows, nq, DV)
        row_lse, row_dot = load_line(lines[0], entry, rows, nq), load_line(lines[1], entry, rows, nq)
    to_query = tl.zeros((BLOCK_Q, max(16, triton.next_power_of_2(DK))), dtype=tl.float32)
    for start in range(0, nk, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        key = load_rows(k, batch, head, columns, nk, DK)
        scores = score_tile(query, key, bias, visible, entries, sizes, batch, head, rows, columns, scale)
        value_hat = load_rows(v_hat, batch, head, columns, nk, S)
        share = tl.exp(scores - load_line(lines[2], entry, columns, nk)[None, :])
        gradient = softmax_gradient(share, to_u, value_hat, load_line(lines[3], entry, columns, nk)[None, :], PRECISION)
        if v is not None:
            value = load_rows(v, batch, head, columns, nk, DV)
            gradient += softmax_gradient(tl.exp(scores - row_lse[:, None]), to_sa, value, row_dot[:, None], PRECISION)
        to_query += matmul(gradient.to(key.dtype), key, PRECISION)
    store_rows(dq, to_query * scale, batch, head, rows, nq, DK)


@triton.jit
def bias_gradient_kernel(
    q, k, v, v_hat, dsa, du, bias, visible, entries, lines, parts, bias_heads, members, per_part, sizes, scale,
    DK: tl.constexpr, DV: tl.constexpr, S: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """Compute a tile of the bias gradient: dS summed over a part of the `members`, the entries that share one bias.

    Members are batch entries (and heads). Grid axis 0 is the bias and the tile, grid axis 1 the part. Each part is written
    to its own slice of `parts` (parts, b, bias_heads, Nq, Nk), so the order of the sum never changes.
    """
    heads, nq, nk = sizes[0], sizes[1], sizes[2]
    tile, shared, bias_batch, bias_head = program_index(tl.cdiv(nq, BLOCK_Q) * tl.cdiv(nk, BLOCK_K), bias_heads)
    rows = tile // tl.cdiv(nk, BLOCK_K) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    columns = tile % tl.cdiv(nk, BLOCK_K) * BLOCK_K + tl.arange(0, BLOCK_K)
    sharing = heads // bias_heads  # number of heads that share a bias: one, or all of them
    part = tl.program_id(1)
    total = tl.zeros((BLOCK_Q, BLOCK_K), dtype=tl.float32)
    for member in range(part * per_part, tl.minimum((part + 1) * per_part, members)):
        batch, head = bias_batch + member // sharing * entries, bias_head + member % sharing
        entry = batch * heads + head
        query, key = load_rows(q, batch, head, rows, nq, DK), load_rows(k, batch, head, columns, nk, DK)
        scores = score_tile(query, key, bias, visible, entries, sizes, batch, head, rows, columns, scale)
        to_u, value_hat = load_rows(du, batch, head, rows, nq, S), load_rows(v_hat, batch, head, columns, nk, S)
        share = tl.exp(scores - load_line(lines[2], entry, columns, nk)[None, :])
        total += softmax_gradient(share, to_u, value_hat, load_line(lines[3], entry, columns, nk)[None, :], PRECISION)
        if v is not None:
            to_sa, value = load_rows(dsa, batch, head, rows, nq, DV), load_rows(v, batch, head, columns, nk, DV)
            weight = tl.exp(scores - load_line(lines[0], entry, rows, nq)[:, None])
            total += softmax_gradient(weight, to_sa, value, load_line(lines[1], entry, rows, nq)[:, None], PRECISION)
    pointers = parts + ((part * entries * bias_heads + shared) * nq + rows[:, None]) * nk + columns[None, :]
    tl.store(pointers, total, mask=(rows[:, None] < nq) & (columns[None, :] < nk))
