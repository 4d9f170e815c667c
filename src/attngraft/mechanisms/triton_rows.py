"""What attention kernels share: operands (B, H, N, width) read and written tile by tile, and pieces of a softmax.

An operand is a tuple: its pointer, then the strides of batch, heads and tokens; its channels are next to each other.
Scores, exponentials and sums are float32, and so are float32 operands' products ("ieee", not TF32).
Import this module only where an operation's obstacle found none.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from attngraft.dispatch.triton import INTERPRETING

#: whether these kernels run in Triton's interpreter, which would multiply the bits of bfloat16 numbers as integers
INTERPRETED = tl.constexpr(INTERPRETING)


def operand(tensor: Tensor | None) -> tuple[Any, ...] | None:
    """The tensor and its strides, as the kernels take it; a copy only where channels lie apart."""
    if tensor is None:
        return None
    tensor = tensor if tensor.stride(-1) == 1 else tensor.contiguous()
    return (tensor, *tensor.stride()[:-1])


@triton.jit
def places_at(operand, batch, head, rows, count, lane, width):
    """Pointers to these lanes of rows of an operand, and which of them lie within `count` rows and `width` channels."""
    first = operand[0] + batch * operand[1] + head * operand[2]
    places = first + rows[:, None].to(tl.int64) * operand[3] + lane[None, :]
    return places, (rows[:, None] < count) & (lane[None, :] < width)


@triton.jit
def places_of(operand, batch, head, rows, count, WIDTH: tl.constexpr):
    """Those of all WIDTH channels: as many lanes, rounded up to a power of two that tl.dot takes."""
    lane = tl.arange(0, max(16, triton.next_power_of_2(WIDTH)))
    return places_at(operand, batch, head, rows, count, lane, WIDTH)


@triton.jit
def load_rows(operand, batch, head, rows, count, WIDTH: tl.constexpr):
    """Rows of an operand, with zeros outside."""
    places, inside = places_of(operand, batch, head, rows, count, WIDTH)
    return tl.load(places, mask=inside, other=0.0)


@triton.jit
def store_rows(operand, value, batch, head, rows, count, WIDTH: tl.constexpr):
    places, inside = places_of(operand, batch, head, rows, count, WIDTH)
    tl.store(places, value.to(operand[0].dtype.element_ty), mask=inside)


@triton.jit
def load_line(pointer, entry, index, count):
    """A piece of a contiguous (B, H, count), zero beyond it."""
    return tl.load(pointer + entry * count + index, mask=index < count, other=0.0)


@triton.jit
def times(a, b):
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def place(tiles, heads):
    """Of this program: the tile, the entry (batch and head as one), the batch and the head."""
    entry = (tl.program_id(0) // tiles).to(tl.int64)
    return tl.program_id(0) % tiles, entry, entry // heads, entry % heads


@triton.jit
def finite(highest):
    """A maximum that can be subtracted: 0 where everything is -inf."""
    return tl.where(highest == -float("inf"), 0.0, highest)


@triton.jit
def something(total):
    """A sum that can be divided by: 1 where nothing was summed."""
    return tl.where(total == 0.0, 1.0, total)


@triton.jit
def through_softmax(weight, gradient, value, dot):
    """The gradient of a softmax's scores: weight (gradient value^T - dot)."""
    return weight * (times(gradient, tl.trans(value)) - dot)
