"""The Triton kernels of local attention: one sweep over the offsets closes the softmax on its way.

    out_p[c] = sum_o (mul[c, o] w_p,o + add[c, o]) v_(s p + d o)[c],    w = softmax over o of the filters, or the filters

A program belongs to one image and head and a tile of pixels, all channels of the head. It reads each filter once: the sum is
rescaled when a larger score comes. What the softmax divides by is kept as a log-sum-exp l per pixel, so that the backward
makes any weight again by itself, exp(filter - l). No exponent is positive, so nothing overflows.

The backward has three kernels, each of which has its results to itself: no atomics, so the order of sums never changes.

    dv_q = sum_o (mul w_p,o + add) dout_p,  p the pixel that sees q at offset o        a tile of pixels q
    df_p,o = w_p,o (g_p,o - sum_o' w_p,o' g_p,o'),  g_p,o = sum_c mul dout_p v_(p+o)   a tile of pixels p, swept twice
    dmul = sum_p w_p,o dout_p v_(p+o),  dadd = sum_p dout_p v_(p+o)                    a head, an offset, some of the images

All tensors are contiguous, channels first: values (B, C, Y, X), filters (B, H K, Y', X'), out (B, C, Y', X'), ghosts (C, K).
`sizes` is (H, Y, X, Y', X'). Sums are float32.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from attngraft.mechanisms.triton_rows import finite, place, something


@triton.jit
def pixels(tile, rows, columns, BLOCK_P: tl.constexpr):
    """Those of a tile: their numbers, rows, columns, and which are there."""
    number = tile * BLOCK_P + tl.arange(0, BLOCK_P)
    return number, number // columns, number % columns, number < rows * columns


@triton.jit
def away(offset, SIZE: tl.constexpr, DILATION: tl.constexpr):
    """How far a neighbor lies: rows and columns."""
    return (offset // SIZE - SIZE // 2) * DILATION, (offset % SIZE - SIZE // 2) * DILATION


@triton.jit
def load_map(maps, channel, y, x, there, rows, columns):
    """(channels, pixels) of contiguous maps, zero where there is no such channel or pixel, or it lies outside."""
    lane, inside = channel
    seen = there & (y >= 0) & (y < rows) & (x >= 0) & (x < columns)
    places = maps + lane[:, None] * rows * columns + (y * columns + x)[None, :]
    return tl.load(places, mask=inside[:, None] & seen[None, :], other=0.0).to(tl.float32), seen


@triton.jit
def load_ghost(ghost, own, offset, OFFSETS: tl.constexpr):
    """(channels, 1) of a ghost matrix."""
    lane, inside = own
    return tl.load(ghost + lane * OFFSETS + offset, mask=inside, other=0.0).to(tl.float32)[:, None]


@triton.jit
def lanes(entry, head, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """A head's channels: in the maps of the batch, and in the ghost matrices."""
    lane = tl.arange(0, BLOCK_D)
    return (entry * D + lane, lane < D), (head * D + lane, lane < D)


@triton.jit
def weight_of(filters, lse, entry, offset, number, there, count, OFFSETS: tl.constexpr, SOFTMAX: tl.constexpr):
    """The weights at an offset, zero where there is no such pixel."""
    found = tl.load(filters + (entry * OFFSETS + offset) * count + number, mask=there, other=0.0).to(tl.float32)
    if SOFTMAX:
        found = tl.exp(found - tl.load(lse + entry * count + number, mask=there, other=0.0))
    return tl.where(there, found, 0.0)


@triton.jit
def forward_kernel(
    values, filters, mul, add, out, lse, sizes,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr,
    SIZE: tl.constexpr, DILATION: tl.constexpr, STRIDE: tl.constexpr,
    SOFTMAX: tl.constexpr, MUL: tl.constexpr, ADD: tl.constexpr
):  # fmt: skip
    heads, rows, columns, out_rows, out_columns = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    count, OFFSETS = out_rows * out_columns, SIZE * SIZE
    tile, entry, _, head = place(tl.cdiv(count, BLOCK_P), heads)
    channel, own = lanes(entry, head, D, BLOCK_D)
    number, y, x, there = pixels(tile, out_rows, out_columns, BLOCK_P)
    highest = tl.full((BLOCK_P,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_P,), dtype=tl.float32)
    weighed = tl.zeros((BLOCK_D, BLOCK_P), dtype=tl.float32)
    added = tl.zeros((BLOCK_D, BLOCK_P), dtype=tl.float32)
    for offset in range(OFFSETS):
        down, right = away(offset, SIZE, DILATION)
        seen, _on_map = load_map(values, channel, y * STRIDE + down, x * STRIDE + right, there, rows, columns)
        score = tl.load(filters + (entry * OFFSETS + offset) * count + number, mask=there, other=0.0).to(tl.float32)
        if SOFTMAX:
            new = tl.maximum(highest, score)
            keep, score = tl.exp(highest - finite(new)), tl.exp(score - finite(new))
            total = total * keep + score
            weighed = weighed * keep[None, :]
            highest = new
        part = seen * score[None, :]
        if MUL:
            part = part * load_ghost(mul, own, offset, OFFSETS)
        weighed += part
        if ADD:
            added += seen * load_ghost(add, own, offset, OFFSETS)
    if SOFTMAX:
        weighed = weighed / something(total)[None, :]
        tl.store(lse + entry * count + number, finite(highest) + tl.log(something(total)), mask=there)
    places = out + channel[0][:, None] * count + number[None, :]
    tl.store(places, (weighed + added).to(out.dtype.element_ty), mask=channel[1][:, None] & there[None, :])


@triton.jit
def values_kernel(
    filters, lse, mul, add, dout, dvalues, sizes,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr,
    SIZE: tl.constexpr, DILATION: tl.constexpr, STRIDE: tl.constexpr,
    SOFTMAX: tl.constexpr, MUL: tl.constexpr, ADD: tl.constexpr
):  # fmt: skip
    """The values' gradients: each pixel collects from those that see it."""
    heads, rows, columns, out_rows, out_columns = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    count, OFFSETS = out_rows * out_columns, SIZE * SIZE
    tile, entry, _, head = place(tl.cdiv(rows * columns, BLOCK_P), heads)
    channel, own = lanes(entry, head, D, BLOCK_D)
    number, y, x, there = pixels(tile, rows, columns, BLOCK_P)
    total = tl.zeros((BLOCK_D, BLOCK_P), dtype=tl.float32)
    for offset in range(OFFSETS):
        down, right = away(offset, SIZE, DILATION)
        from_y, from_x = y - down, x - right
        on = there & (from_y >= 0) & (from_x >= 0) & (from_y % STRIDE == 0) & (from_x % STRIDE == 0)
        from_y, from_x = from_y // STRIDE, from_x // STRIDE
        gradient, seen = load_map(dout, channel, from_y, from_x, on, out_rows, out_columns)
        pixel = tl.where(seen, from_y * out_columns + from_x, 0)
        weight = weight_of(filters, lse, entry, offset, pixel, seen, count, OFFSETS, SOFTMAX)[None, :]
        if MUL:
            weight = weight * load_ghost(mul, own, offset, OFFSETS)
        if ADD:
            weight = weight + load_ghost(add, own, offset, OFFSETS)
        total += weight * gradient
    places = dvalues + channel[0][:, None] * rows * columns + number[None, :]
    tl.store(places, total.to(dvalues.dtype.element_ty), mask=channel[1][:, None] & there[None, :])


@triton.jit
def filters_kernel(
    values, filters, lse, mul, dout, dfilters, sizes,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr,
    SIZE: tl.constexpr, DILATION: tl.constexpr, STRIDE: tl.constexpr, SOFTMAX: tl.constexpr, MUL: tl.constexpr
):  # fmt: skip
    """The filters' gradients (float32): those of the weights first, then, of a softmax, through it."""
    heads, rows, columns, out_rows, out_columns = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    count, OFFSETS = out_rows * out_columns, SIZE * SIZE
    tile, entry, _, head = place(tl.cdiv(count, BLOCK_P), heads)
    channel, own = lanes(entry, head, D, BLOCK_D)
    number, y, x, there = pixels(tile, out_rows, out_columns, BLOCK_P)
    gradient, _on_map = load_map(dout, channel, y, x, there, out_rows, out_columns)
    dot = tl.zeros((BLOCK_P,), dtype=tl.float32)
    for offset in range(OFFSETS):
        down, right = away(offset, SIZE, DILATION)
        seen, _on_map = load_map(values, channel, y * STRIDE + down, x * STRIDE + right, there, rows, columns)
        part = gradient * seen
        if MUL:
            part = part * load_ghost(mul, own, offset, OFFSETS)
        found = tl.sum(part, 0)
        if SOFTMAX:
            dot += found * weight_of(filters, lse, entry, offset, number, there, count, OFFSETS, SOFTMAX)
        tl.store(dfilters + (entry * OFFSETS + offset) * count + number, found, mask=there)
    if SOFTMAX:
        tl.debug_barrier()  # what was stored is read again
        for offset in range(OFFSETS):
            places = dfilters + (entry * OFFSETS + offset) * count + number
            weight = weight_of(filters, lse, entry, offset, number, there, count, OFFSETS, SOFTMAX)
            tl.store(places, weight * (tl.load(places, mask=there, other=0.0) - dot), mask=there)


@triton.jit
def ghosts_kernel(
    values, filters, lse, dout, dmul, dadd, sizes, batch, per_part,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr,
    SIZE: tl.constexpr, DILATION: tl.constexpr, STRIDE: tl.constexpr,
    SOFTMAX: tl.constexpr, MUL: tl.constexpr, ADD: tl.constexpr
):  # fmt: skip
    """What some of the images add to the ghost matrices' gradients, (parts, C, K); a program per part, head and offset."""
    heads, rows, columns, out_rows, out_columns = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    count, OFFSETS = out_rows * out_columns, SIZE * SIZE
    offset, _, part, head = place(OFFSETS, heads)
    down, right = away(offset, SIZE, DILATION)
    to_mul = tl.zeros((BLOCK_D, BLOCK_P), dtype=tl.float32)
    to_add = tl.zeros((BLOCK_D, BLOCK_P), dtype=tl.float32)
    for image in range(part * per_part, tl.minimum((part + 1) * per_part, batch)):
        entry = image * heads + head
        channel, _own = lanes(entry, head, D, BLOCK_D)
        for tile in range(tl.cdiv(count, BLOCK_P)):
            number, y, x, there = pixels(tile, out_rows, out_columns, BLOCK_P)
            gradient, _on_map = load_map(dout, channel, y, x, there, out_rows, out_columns)
            seen, _on_map = load_map(values, channel, y * STRIDE + down, x * STRIDE + right, there, rows, columns)
            both = gradient * seen
            if MUL:
                to_mul += both * weight_of(filters, lse, entry, offset, number, there, count, OFFSETS, SOFTMAX)[None, :]
            if ADD:
                to_add += both
    lane = tl.arange(0, BLOCK_D)
    places = ((part * heads + head) * D + lane) * OFFSETS + offset
    if MUL:
        tl.store(dmul + places, tl.sum(to_mul, 1), mask=lane < D)
    if ADD:
        tl.store(dadd + places, tl.sum(to_add, 1), mask=lane < D)
