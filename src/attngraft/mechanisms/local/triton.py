"""Local attention as Triton kernels, forward and backward.

The softmax is fused, the forward reads the filters once, and no tensor is k * k times as large as the values.
Import this module only if Triton is available.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from attngraft.dispatch.autograd import cast_for_autocast, custom_op, empty_gradients
from attngraft.mechanisms.local import reference
from attngraft.mechanisms.local import triton_kernels as kernels
from attngraft.mechanisms.local.geometry import Neighborhood

#: number of parts into which sums over all images are split, one program each
PARTS = 16


def tiles(width: int) -> dict[str, int]:
    """Return tile sizes and launch options for `width` (a power of two) channels.

    Both sums of a tile fit in registers.
    """
    return {"BLOCK_P": max(16, min(128, 4096 // width)), "num_warps": 4}


class _Launch(NamedTuple):
    """The layout of a call."""

    batch: int
    sizes: tuple[int, int, int, int, int]  #: heads, Y, X, Y', X'
    options: dict[str, Any]

    def grid(self, rows: int, columns: int) -> tuple[int]:
        """Return a program per image, head and tile of a map."""
        return (self.batch * self.sizes[0] * triton.cdiv(rows * columns, self.options["BLOCK_P"]),)


def _launch(values: Tensor, filters: Tensor, near: Neighborhood, softmax: bool) -> _Launch:
    batch, channels, rows, columns = values.shape
    heads = filters.shape[1] // near.offsets
    width = channels // heads
    block = max(16, triton.next_power_of_2(width))
    options = {
        "D": width,
        "BLOCK_D": block,
        "SIZE": near.size,
        "DILATION": near.dilation,
        "STRIDE": near.stride,
        "SOFTMAX": softmax,
        **tiles(block),
    }
    return _Launch(batch, (heads, rows, columns, *filters.shape[2:]), options)


def _formula(values: Tensor, filters: Tensor, mul: Tensor | None, add: Tensor | None, *options: Any) -> tuple[Tensor]:
    *sizes, softmax = options
    near = Neighborhood(*sizes)
    return (reference.local_filter(values, filters, mul, add, neighborhood=near, softmax=softmax),)


def _empty_outputs(values: Tensor, filters: Tensor, mul: Any, add: Any, *options: Any) -> tuple[Tensor, Tensor]:
    batch, maps, rows, columns = filters.shape
    size, *_, softmax = options
    lse = values.new_empty((batch, maps // size**2, rows, columns) if softmax else (0,), dtype=torch.float32)
    return values.new_empty(batch, values.shape[1], rows, columns), lse


def _flops(values: Any, filters: Any, mul: Any, add: Any, size: int, *_: Any) -> int:
    """Count one multiply-add per offset, channel and output pixel, and another for each ghost matrix.

    The other backends count in the same way.
    """
    batch, _, rows, columns = filters
    ghosts = sum(ghost is not None for ghost in (mul, add))
    return int((1 + ghosts) * 2 * batch * rows * columns * values[1] * size**2)


def _filters_backward(to_outputs: Any, operands: Any, saved: Any, *options: Any) -> tuple[Tensor, ...]:
    """Return the gradients of values, filters, mul and add; empty for matrices that are None."""
    (dout,), (values, filters, mul, add), (lse,), (*sizes, softmax) = to_outputs, operands, saved, options
    dout = dout.contiguous()
    gradients = dvalues, dfilters, dmul, dadd = empty_gradients(*operands)
    if not (dout.numel() and values.numel()):
        return tuple(gradient.zero_() for gradient in gradients)
    launch = _launch(values, filters, Neighborhood(*sizes), softmax)
    has = {"MUL": mul is not None, "ADD": add is not None}
    to_filters = torch.empty_like(filters, dtype=torch.float32)
    parts, per_part = triton.cdiv(launch.batch, triton.cdiv(launch.batch, PARTS)), triton.cdiv(launch.batch, PARTS)
    to_mul, to_add = (
        values.new_empty((parts, *ghost.shape) if ghost is not None else (0,), dtype=torch.float32)
        for ghost in (mul, add)
    )
    with torch.cuda.device_of(values):
        kernels.values_kernel[launch.grid(*values.shape[2:])](
            filters, lse, mul, add, dout, dvalues, launch.sizes, **has, **launch.options
        )
        kernels.filters_kernel[launch.grid(*filters.shape[2:])](
            values, filters, lse, mul, dout, to_filters, launch.sizes, MUL=has["MUL"], **launch.options
        )
        if any(has.values()):
            kernels.ghosts_kernel[(parts * launch.sizes[0] * sizes[0] ** 2,)](
                *(values, filters, lse, dout, to_mul, to_add, launch.sizes, launch.batch, per_part),
                **has,
                **launch.options,
            )
    dfilters.copy_(to_filters)
    for gradient, by_part, ghost in ((dmul, to_mul, mul), (dadd, to_add, add)):
        if ghost is not None:
            gradient.copy_(by_part.sum(0))
    return gradients


@custom_op(
    "local_filter",
    backward=_filters_backward,
    formula=_formula,
    outputs=_empty_outputs,
    flops=_flops,
    saves=(1,),
)
def apply_filters(
    values: Tensor,
    filters: Tensor,
    mul: Tensor | None,
    add: Tensor | None,
    size: int,
    dilation: int,
    stride: int,
    softmax: bool,
) -> tuple[Tensor, Tensor]:
    """Return the output (B, C, Y', X') and the filters' log-sum-exp (B, H, Y', X'), float32; empty without a softmax.

    All tensors are contiguous; `mul` and `add` are (C, K).
    """
    out, lse = _empty_outputs(values, filters, mul, add, size, dilation, stride, softmax)
    if not out.numel():
        return out, lse
    launch = _launch(values, filters, Neighborhood(size, dilation, stride), softmax)
    has = {"MUL": mul is not None, "ADD": add is not None}
    with torch.cuda.device_of(values):
        kernels.forward_kernel[launch.grid(*filters.shape[2:])](
            values, filters, mul, add, out, lse, launch.sizes, **has, **launch.options
        )
    return out, lse


def local_filter(
    values: Tensor,
    filters: Tensor,
    multiplier: Tensor | None,
    addend: Tensor | None,
    *,
    neighborhood: Neighborhood,
    softmax: bool,
) -> Tensor:
    """Return the filtered map (B, C, Y', X')."""
    values, filters, mul, add = cast_for_autocast(values, filters, multiplier, addend)
    ghosts = (None if ghost is None else ghost.flatten(1).contiguous() for ghost in (mul, add))
    near = neighborhood
    out, _ = apply_filters(
        values.contiguous(), filters.contiguous(), *ghosts, near.size, near.dilation, near.stride, softmax
    )
    return out
