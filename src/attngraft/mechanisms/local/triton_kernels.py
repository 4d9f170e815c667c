"""The Triton kernels of local attention: one sweep over the offsets completes the softmax.

    out_p[c] = sum_o (mul[c, o] w_p,o + add[c, o]) v_(s p + d o)[c],    w = softmax over o of the filters, or the filters

A program processes a tile of pixels of one image and head, with all channels of the head. It reads each filter once: the sum
is rescaled when a larger score is found. The divisor of the softmax is stored as a log-sum-exp l per pixel, from which the
backward recomputes any weight as exp(filter - l). No exponent is positive, so nothing overflows.

The backward has three kernels. Each result is written by a single program: there are no atomics, so the order of sums never
changes.

    values_kernel     dv_q = sum_o (mul w_p,o + add) dout_p, with p the pixel whose neighbor at offset o is q
    filters_kernel    df_p,o = w_p,o (g_p,o - sum_o' w_p,o' g_p,o'), with g_p,o = sum_c mul dout_p v_(p+o)
    ghosts_kernel     dmul = sum_p w_p,o dout_p v_(p+o),  dadd = sum_p dout_p v_(p+o)

A program computes, respectively, a tile of pixels q, a tile of pixels p (in two sweeps over the offsets), and one offset of
one head, summed over some of the images.

All tensors are contiguous, channels first: values (B, C, Y, X), filters (B, H K, Y', X'), out (B, C, Y', X'), ghosts (C, K).
`sizes` is (H, Y, X, Y', X'). Sums are float32.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from attngraft.mechanisms.triton_rows import finite, nonzero, program_index


@triton.jit
def pixels(tile, rows, columns, BLOCK_P: tl.constexpr):
    """Return the pixels (BLOCK_P) of a tile: index, row, column, and whether the pixel is on the map."""
    number = tile * BLOCK_P + tl.arange(0, BLOCK_P)
    return number, number // columns, number % columns, number < rows * columns


@triton.jit
def offset_distance(offset, SIZE: tl.constexpr, DILATION: tl.constexpr):
    """Return the distance (rows, columns) of the neighbor at `offset`."""
    return (offset // SIZE - SIZE // 2) * DILATION, (offset % SIZE - SIZE // 2) * DILATION


@triton.jit
def load_map(maps, channel, y, x, exists, rows, columns):
    """Load a tile (BLOCK_D, BLOCK_P) of contiguous maps, zero out of range, and whether each pixel is in range."""
    lane, inside = channel
    seen = exists & (y >= 0) & (y < rows) & (x >= 0) & (x < columns)
    pointers = maps + lane[:, None] * rows * columns + (y * columns + x)[None, :]
    return tl.load(pointers, mask=inside[:, None] & seen[None, :], other=0.0).to(tl.float32), seen


@triton.jit
def load_ghost(ghost, ghost_channel, offset, OFFSETS: tl.constexpr):
    """Load the entries (BLOCK_D, 1) of a ghost matrix (C, K) at `offset`."""
    lane, inside = ghost_channel
    return tl.load(ghost + lane * OFFSETS + offset, mask=inside, other=0.0).to(tl.float32)[:, None]


@triton.jit
def lanes(entry, head, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the indices and masks of a head's channels, first in the maps of the batch, then in the ghost matrices."""
    lane = tl.arange(0, BLOCK_D)
    return (entry * D + lane, lane < D), (head * D + lane, lane < D)


@triton.jit
def weight_of(filters, lse, entry, offset, number, exists, count, OFFSETS: tl.constexpr, SOFTMAX: tl.constexpr):
    """Load the weights (BLOCK_P) at `offset`, after softmax if SOFTMAX; zero for pixels that are not on the map."""
    weight = tl.load(filters + (entry * OFFSETS + offset) * count + number, mask=exists, other=0.0).to(tl.float32)
    if SOFTMAX:
        weight = tl.exp(weight - tl.load(lse + entry * count + number, mask=exists, other=0.0))
    return tl.where(exists, weight, 0.0)


@triton.jit
def forward_kernel(
    values, filters, mul, add, out, lse, sizes,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr,
    SIZE: tl.constexpr, DILATION: tl.constexpr, STRIDE: tl.constexpr,
    SOFTMAX: tl.constexpr, MUL: tl.constexpr, ADD: tl.constexpr
):  # fmt: skip
    heads, rows, columns, out_rows, out_columns = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    count, OFFSETS = out_rows * out_columns, SIZE * SIZE
    tile, entry, _, head = program_index(tl.cdiv(count, BLOCK_P), heads)
    channel, ghost_channel = lanes(entry, head, D, BLOCK_D)
    number, y, x, exists = pixels(tile, out_rows, out_columns, BLOCK_P)
    highest = tl.full((BLOCK_P,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_P,), dtype=tl.float32)
    weighted = tl.zeros((BLOCK_D, BLOCK_P), dtype=tl.float32)
    added = tl.zeros((BLOCK_D, BLOCK_P), dtype=tl.float32)
    for offset in range(OFFSETS):
        down, right = offset_distance(offset, SIZE, DILATION)
        seen, _on_map = load_map(values, channel, y * STRIDE + down, x * STRIDE + right, exists, rows, columns)
        score = tl.load(filters + (entry * OFFSETS + offset) * count + number, mask=exists, other=0.0).to(tl.float32)
        if SOFTMAX:
            new = tl.maximum(highest, score)
            keep, score = tl.exp(highest - finite(new)), tl.exp(score - finite(new))
            total = total * keep + score
            weighted = weighted * keep[None, :]
            highest = new
        part = seen * score[None, :]
        if MUL:
            part = part * load_ghost(mul, ghost_channel, offset, OFFSETS)
        weighted += part
        if ADD:
            added += seen * load_ghost(add, ghost_channel, offset, OFFSETS)
    if SOFTMAX:
        weighted = weighted / nonzero(total)[None, :]
        tl.store(lse + entry * count + number, finite(highest) + tl.log(nonzero(total)), mask=exists)
    pointers = out + channel[0][:, None] * count + number[None, :]
    tl.store(pointers, (weighted + added).to(out.dtype.element_ty), mask=channel[1][:, None] & exists[None, :])


@triton.jit
def values_kernel(
    filters, lse, mul, add, dout, dvalues, sizes,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr,
    SIZE: tl.constexpr, DILATION: tl.constexpr, STRIDE: tl.constexpr,
    SOFTMAX: tl.constexpr, MUL: tl.constexpr, ADD: tl.constexpr
):  # fmt: skip
    """Compute dv for a tile of pixels: each gathers from the pixels that have it as a neighbor."""
    heads, rows, columns, out_rows, out_columns = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    count, OFFSETS = out_rows * out_columns, SIZE * SIZE
    tile, entry, _, head = program_index(tl.cdiv(rows * columns, BLOCK_P), heads)
    channel, ghost_channel = lanes(entry, head, D, BLOCK_D)
    number, y, x, exists = pixels(tile, rows, columns, BLOCK_P)
    total = tl.zeros((BLOCK_D, BLOCK_P), dtype=tl.float32)
    for offset in range(OFFSETS):
        down, right = offset_distance(offset, SIZE, DILATION)
        from_y, from_x = y - down, x - right
        on = exists & (from_y >= 0) & (from_x >= 0) & (from_y % STRIDE == 0) & (from_x % STRIDE == 0)
        from_y, from_x = from_y // STRIDE, from_x // STRIDE
        gradient, seen = load_map(dout, channel, from_y, from_x, on, out_rows, out_columns)
        pixel = tl.where(seen, from_y * out_columns + from_x, 0)
        weight = weight_of(filters, lse, entry, offset, pixel, seen, count, OFFSETS, SOFTMAX)[None, :]
        if MUL:
            weight = weight * load_ghost(mul, ghost_channel, offset, OFFSETS)
        if ADD:
            weight = weight + load_ghost(add, ghost_channel, offset, OFFSETS)
        total += weight * gradient
    pointers = dvalues + channel[0][:, None] * rows * columns + number[None, :]
    tl.store(pointers, total.to(dvalues.dtype.element_ty), mask=channel[1][:, None] & exists[None, :])


@triton.jit
def filters_kernel(
    values, filters, lse, mul, dout, dfilters, sizes,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr,
    SIZE: tl.constexpr, DILATION: tl.constexpr, STRIDE: tl.constexpr, SOFTMAX: tl.constexpr, MUL: tl.constexpr
):  # fmt: skip
    """Compute df in float32 for a tile of pixels: first the gradient of the weights, then, if SOFTMAX, of the scores."""
    heads, rows, columns, out_rows, out_columns = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    count, OFFSETS = out_rows * out_columns, SIZE * SIZE
    tile, entry, _, head = program_index(tl.cdiv(count, BLOCK_P), heads)
    channel, ghost_channel = lanes(entry, head, D, BLOCK_D)
    number, y, x, exists = pixels(tile, out_rows, out_columns, BLOCK_P)
    gradient, _on_map = load_map(dout, channel, y, x, exists, out_rows, out_columns)
    dot = tl.zeros((BLOCK_P,), dtype=tl.float32)
    for offset in range(OFFSETS):
        down, right = offset_distance(offset, SIZE, DILATION)
        seen, _on_map = load_map(values, channel, y * STRIDE + down, x * STRIDE + right, exists, rows, columns)
        part = gradient * seen
        if MUL:
            part = part * load_ghost(mul, ghost_channel, offset, OFFSETS)
        product = tl.sum(part, 0)
        if SOFTMAX:
            dot += product * weight_of(filters, lse, entry, offset, number, exists, count, OFFSETS, SOFTMAX)
        tl.store(dfilters + (entry * OFFSETS + offset) * count + number, product, mask=exists)
    if SOFTMAX:
        tl.debug_barrier()  # stored values are read below
        for offset in range(OFFSETS):
            pointers = dfilters + (entry * OFFSETS + offset) * count + number
            weight = weight_of(filters, lse, entry, offset, number, exists, count, OFFSETS, SOFTMAX)
            tl.store(pointers, weight * (tl.load(pointers, mask=exists, other=0.0) - dot), mask=exists)


@triton.jit
def ghosts_kernel(
    values, filters, lse, dout, dmul, dadd, sizes, batch, per_part,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr,
    SIZE: tl.constexpr, DILATION: tl.constexpr, STRIDE: tl.constexpr,
    SOFTMAX: tl.constexpr, MUL: tl.constexpr, ADD: tl.constexpr
):  # fmt: skip
    """Compute dmul and dadd (parts, C, K), summed over parts of the images; a program per part, head and offset."""
    heads, rows, columns, out_rows, out_columns = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    count, OFFSETS = out_rows * out_columns, SIZE * SIZE
    offset, _, part, head = program_index(OFFSETS, heads)
    down, right = offset_distance(offset, SIZE, DILATION)
    to_mul = tl.zeros((BLOCK_D, BLOCK_P), dtype=tl.float32)
    to_add = tl.zeros((BLOCK_D, BLOCK_P), dtype=tl.float32)
    for image in range(part * per_part, tl.minimum((part + 1) * per_part, batch)):
        entry = image * heads + head
        channel, _unused = lanes(entry, head, D, BLOCK_D)
        for tile in range(tl.cdiv(count, BLOCK_P)):
            number, y, x, exists = pixels(tile, out_rows, out_columns, BLOCK_P)
            gradient, _on_map = load_map(dout, channel, y, x, exists, out_rows, out_columns)
            seen, _on_map = load_map(values, channel, y * STRIDE + down, x * STRIDE + right, exists, rows, columns)
            both = gradient * seen
            if MUL:
                to_mul += (
                    both * weight_of(filters, lse, entry, offset, number, exists, count, OFFSETS, SOFTMAX)[None, :]
                )
            if ADD:
                to_add += both
    lane = tl.arange(0, BLOCK_D)
    pointers = ((part * heads + head) * D + lane) * OFFSETS + offset
    if MUL:
        tl.store(dmul + pointers, tl.sum(to_mul, 1), mask=lane < D)
    if ADD:
        tl.store(dadd + pointers, tl.sum(to_add, 1), mask=lane < D)
