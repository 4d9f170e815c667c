"""The Triton kernels of bi-directional cross-attention: one sweep over the tokens serves both directions.

    A = scale r_latents r_tokens^T,   l_m = log sum_n exp A_mn,   P_mn = exp(A_mn - l_m),   Q_mn = softmax over m of A_mn

A program processes one image and head, and sweeps over its part of the tokens tile by tile. It covers all M latents, so
every token's softmax Q is complete within a tile and is not stored. The latents' sums cover this part of the tokens only;
they are written with their log-sum-exp l, which is used to combine the parts.

The backward sweeps in the same way, with l over all tokens. With D_m = dlatents_m . latents_m and E_n = sum_m Q_mn dQ_mn,

    dP = dlatents v_tokens^T,   dQ = v_latents dtokens^T,   dA = P (dP - D) + Q (dQ - E)

and each part of the tokens writes its share of dr_latents and dv_latents to its own slice: no atomics, so the order of the
sum never changes. No exponent is positive, so nothing overflows.

Operands are as in `triton_rows`. `sizes` is (heads, M, N). BLOCK_M is M rounded up to a power of two; A is -inf for latents
and tokens out of range, which gives them no weight. The latents' operands are kept whole if they fit (PIECE = 0), otherwise
they are read again for each tile, PIECE channels at a time. A, P, Q and sums are float32; for half precision operands, P, Q
and dA are rounded to half precision before the products.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from attngraft.mechanisms.triton_rows import (
    finite,
    load_line,
    load_rows,
    matmul,
    nonzero,
    pointers_at,
    program_index,
    store_rows,
)

#: of products of float32 operands; the sums over many tokens would make errors of "tf32x3" visible
PRECISION = tl.constexpr("ieee")


@triton.jit
def held_rows(operand, index, WIDTH: tl.constexpr):
    """Load rows of an operand and return (rows, operand, index); `index` is (batch, head, row numbers, count)."""
    return load_rows(operand, *index, WIDTH), operand, index


@triton.jit
def load_piece(side, first, WIDTH: tl.constexpr, PIECE: tl.constexpr):
    """Load PIECE channels, starting at `first`, of the rows of `side`, which `held_rows` returned."""
    pointers, inside = pointers_at(side[1], *side[2], first + tl.arange(0, PIECE), WIDTH)
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def products(latents, tokens, WIDTH: tl.constexpr, PIECE: tl.constexpr):
    """Return the dot products (BLOCK_M, BLOCK_N) of the rows of all latents with the rows of a tile of tokens."""
    if PIECE == 0:
        return matmul(latents[0], tl.trans(tokens[0]), PRECISION)
    else:
        total = tl.zeros((latents[0].shape[0], tokens[0].shape[0]), dtype=tl.float32)
        for first in range(0, WIDTH, PIECE):
            token = load_piece(tokens, first, WIDTH, PIECE)
            total += matmul(load_piece(latents, first, WIDTH, PIECE), tl.trans(token), PRECISION)
        return total


@triton.jit
def store_sums(out, index, weight, factor, latents, WIDTH: tl.constexpr, PIECE: tl.constexpr):
    """Store factor * weight^T latents (BLOCK_N, WIDTH), each token's weighted sum of latents; weight (BLOCK_M, BLOCK_N)."""
    weight = tl.trans(weight.to(latents[0].dtype))
    if PIECE == 0:
        store_rows(out, matmul(weight, latents[0], PRECISION) * factor, *index, WIDTH)
    else:
        for first in range(0, WIDTH, PIECE):
            product = matmul(weight, load_piece(latents, first, WIDTH, PIECE), PRECISION) * factor
            pointers, inside = pointers_at(out, *index, first + tl.arange(0, PIECE), WIDTH)
            tl.store(pointers, product.to(out[0].dtype.element_ty), mask=inside)


@triton.jit
def similarity(r_latent, r_token, scale, D: tl.constexpr, PIECE: tl.constexpr):
    """Compute A (BLOCK_M, BLOCK_N) for all latents and a tile of tokens; -inf for latents and tokens out of range."""
    rows, columns = r_latent[2][2], r_token[2][2]
    inside = (rows[:, None] < r_latent[2][3]) & (columns[None, :] < r_token[2][3])
    return tl.where(inside, products(r_latent, r_token, D, PIECE) * scale, -float("inf"))


@triton.jit
def softmax_over_latents(scores):
    """Compute Q (BLOCK_M, BLOCK_N) from the scores A; zeros for tokens out of range."""
    share = tl.exp(scores - finite(tl.max(scores, 0))[None, :])
    return share / nonzero(tl.sum(share, 0))[None, :]


@triton.jit
def store_part(parts, value, index, WIDTH: tl.constexpr):
    """Store this program's result for the latents in its slice of the contiguous `parts` (B, H, parts, M, WIDTH)."""
    part = (parts + tl.program_id(0).to(tl.int64) * index[3] * WIDTH, 0, 0, WIDTH)
    store_rows(part, value, *index, WIDTH)


@triton.jit
def forward_kernel(
    r_latents, r_tokens, v_latents, v_tokens, latents, latents_lse, tokens, sizes, per_part, scale,
    D: tl.constexpr, DL: tl.constexpr, DT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PIECE: tl.constexpr
):  # fmt: skip
    """Compute the results of a part of the tokens, and the latents' sums over this part with their log-sum-exp l."""
    m, n = sizes[1], sizes[2]
    part, _, batch, head = program_index(tl.cdiv(n, per_part), sizes[0])
    rows = tl.arange(0, BLOCK_M)
    index = (batch, head, rows, m)
    r_latent, v_latent = held_rows(r_latents, index, D), held_rows(v_latents, index, DL)
    highest = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    attended = tl.zeros((BLOCK_M, max(16, triton.next_power_of_2(DT))), dtype=tl.float32)
    for start in range(part * per_part, tl.minimum((part + 1) * per_part, n), BLOCK_N):
        tile_index = (batch, head, start + tl.arange(0, BLOCK_N), n)
        scores = similarity(r_latent, held_rows(r_tokens, tile_index, D), scale, D, PIECE)
        store_sums(tokens, tile_index, softmax_over_latents(scores), 1.0, v_latent, DL, PIECE)
        new = tl.maximum(highest, tl.max(scores, 1))
        keep = tl.exp(highest - finite(new))
        weight = tl.exp(scores - finite(new)[:, None])
        v_token = load_rows(v_tokens, *tile_index, DT)
        attended = attended * keep[:, None] + matmul(weight.to(v_token.dtype), v_token, PRECISION)
        total = total * keep + tl.sum(weight, 1)
        highest = new
    store_part(latents, attended / nonzero(total)[:, None], index, DT)
    line = latents_lse + tl.program_id(0).to(tl.int64) * m + rows
    tl.store(line, finite(highest) + tl.log(nonzero(total)), mask=rows < m)


@triton.jit
def backward_kernel(
    r_latents, r_tokens, v_latents, v_tokens, dlatents, dtokens, latents_lse, latents_dot,
    dr_latents, dr_tokens, dv_latents, dv_tokens, sizes, per_part, scale,
    D: tl.constexpr, DL: tl.constexpr, DT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PIECE: tl.constexpr
):  # fmt: skip
    """Compute the gradients of a part of the tokens, and this part's share of the latents'. `latents_dot` is D."""
    m, n = sizes[1], sizes[2]
    part, entry, batch, head = program_index(tl.cdiv(n, per_part), sizes[0])
    rows = tl.arange(0, BLOCK_M)
    index = (batch, head, rows, m)
    r_latent, v_latent = held_rows(r_latents, index, D), held_rows(v_latents, index, DL)
    to_latent = held_rows(dlatents, index, DT)
    lse, dot = load_line(latents_lse, entry, rows, m), load_line(latents_dot, entry, rows, m)
    to_r_latents = tl.zeros((BLOCK_M, max(16, triton.next_power_of_2(D))), dtype=tl.float32)
    to_v_latents = tl.zeros((BLOCK_M, max(16, triton.next_power_of_2(DL))), dtype=tl.float32)
    for start in range(part * per_part, tl.minimum((part + 1) * per_part, n), BLOCK_N):
        tile_index = (batch, head, start + tl.arange(0, BLOCK_N), n)
        r_token = held_rows(r_tokens, tile_index, D)
        scores = similarity(r_latent, r_token, scale, D, PIECE)
        weight = tl.exp(scores - lse[:, None])
        store_sums(dv_tokens, tile_index, weight, 1.0, to_latent, DT, PIECE)
        gradient = weight * (products(to_latent, held_rows(v_tokens, tile_index, DT), DT, PIECE) - dot[:, None])
        share = softmax_over_latents(scores)
        to_token = held_rows(dtokens, tile_index, DL)
        to_v_latents += matmul(share.to(to_token[0].dtype), to_token[0], PRECISION)
        to_share = products(v_latent, to_token, DL, PIECE)
        gradient += share * (to_share - tl.sum(share * to_share, 0)[None, :])
        gradient = gradient.to(r_token[0].dtype)
        store_sums(dr_tokens, tile_index, gradient, scale, r_latent, D, PIECE)
        to_r_latents += matmul(gradient, r_token[0], PRECISION)
    store_part(dr_latents, to_r_latents * scale, index, D)
    store_part(dv_latents, to_v_latents, index, DL)
