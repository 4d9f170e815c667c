"""Functions shared by the attention kernels: loads and stores of operands (B, H, N, width), and softmaxes.

An operand is a tuple (pointer, batch stride, head stride, token stride); its channels are contiguous. Scores, exponentials
and sums are float32. Products of float32 operands are float32 too ("ieee"), or sums of three TF32 products ("tf32x3"), whose
errors are up to about twice as large and which run on tensor cores; TF32 alone is never used.
Import this module only if Triton is available.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from attngraft.dispatch.triton import INTERPRETING

#: whether the kernels run in Triton's interpreter, which multiplies bfloat16 operands incorrectly (as integer bits)
INTERPRETED = tl.constexpr(INTERPRETING)


def operand(tensor: Tensor | None) -> tuple[Any, ...] | None:
    """Return the tensor and its strides for a kernel; copies it only if its channels are not contiguous."""
    if tensor is None:
        return None
    tensor = tensor if tensor.stride(-1) == 1 else tensor.contiguous()
    return (tensor, *tensor.stride()[:-1])


@triton.jit
def pointers_at(operand, batch, head, rows, count, lane, width):
    """Return pointers to channels `lane` of `rows`, and whether they lie within `count` rows and `width` channels."""
    first = operand[0] + batch * operand[1] + head * operand[2]
    pointers = first + rows[:, None].to(tl.int64) * operand[3] + lane[None, :]
    return pointers, (rows[:, None] < count) & (lane[None, :] < width)


@triton.jit
def pointers_to(operand, batch, head, rows, count, WIDTH: tl.constexpr):
    """Return pointers to all WIDTH channels of `rows`, WIDTH rounded up to a power of two that tl.dot accepts."""
    lane = tl.arange(0, max(16, triton.next_power_of_2(WIDTH)))
    return pointers_at(operand, batch, head, rows, count, lane, WIDTH)


@triton.jit
def load_rows(operand, batch, head, rows, count, WIDTH: tl.constexpr):
    """Load all channels of `rows` of an operand; zeros out of range."""
    pointers, inside = pointers_to(operand, batch, head, rows, count, WIDTH)
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def store_rows(operand, value, batch, head, rows, count, WIDTH: tl.constexpr):
    pointers, inside = pointers_to(operand, batch, head, rows, count, WIDTH)
    tl.store(pointers, value.to(operand[0].dtype.element_ty), mask=inside)


@triton.jit
def load_line(pointer, entry, index, count):
    """Load entries `index` of one row of a contiguous tensor (B, H, count); zeros out of range."""
    return tl.load(pointer + entry * count + index, mask=index < count, other=0.0)


@triton.jit
def matmul(a, b, PRECISION: tl.constexpr):
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def program_index(tiles, heads):
    """Return this program's tile, entry (batch * heads + head), batch index and head index."""
    entry = (tl.program_id(0) // tiles).to(tl.int64)
    return tl.program_id(0) % tiles, entry, entry // heads, entry % heads


@triton.jit
def finite(highest):
    """Return a maximum, with 0 instead of -inf, so that it can be subtracted."""
    return tl.where(highest == -float("inf"), 0.0, highest)


@triton.jit
def nonzero(total):
    """Return a sum, with 1 instead of 0, so that it can be a divisor."""
    return tl.where(total == 0.0, 1.0, total)


@triton.jit
def softmax_gradient(weight, gradient, value, dot, PRECISION: tl.constexpr):
    """Return the gradient of a softmax's input, weight * (gradient value^T - dot), from its output `weight`."""
    return weight * (matmul(gradient, tl.trans(value), PRECISION) - dot)
