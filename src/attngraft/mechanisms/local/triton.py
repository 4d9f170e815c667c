"""Local attention as Triton kernels, forward and backward: the softmax is fused, the forward reads filters once, and nothing
is k * k times as large as the values.

Import this module only where the operation's obstacle found none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from attngraft.dispatch.flops import register_flops
from attngraft.dispatch.formula import differentiable, in_autocast_dtype
from attngraft.mechanisms.local import reference
from attngraft.mechanisms.local import triton_kernels as kernels
from attngraft.mechanisms.local.offsets import Neighborhood

#: programs that share the images, where sums over all of them are made
PARTS = 16


def tiles(width: int) -> dict[str, int]:
    """Tile sizes and launch options for heads of so many channels, a power of two: two sums of a tile stay in registers."""
    return {"BLOCK_P": max(16, min(128, 4096 // width)), "num_warps": 4}


class _Launch(NamedTuple):
    """How a call is laid out."""

    batch: int
    sizes: tuple[int, int, int, int, int]  #: heads, Y, X, Y', X'
    options: dict[str, Any]

    def grid(self, rows: int, columns: int) -> tuple[int]:
        """A program per image, head and tile of a map."""
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


@torch.library.custom_op("attngraft::local_filter", mutates_args=())
def weigh(
    values: Tensor,
    filters: Tensor,
    mul: Tensor | None,
    add: Tensor | None,
    size: int,
    dilation: int,
    stride: int,
    softmax: bool,
) -> tuple[Tensor, Tensor]:
    """(B, C, Y', X'), and in float32 the log-sum-exp (B, H, Y', X') of the filters, of nothing without a softmax. All
    contiguous; ghosts are (C, K)."""
    out, lse = _outputs(values, filters, size, softmax)
    if not out.numel():
        return out, lse
    launch = _launch(values, filters, Neighborhood(size, dilation, stride), softmax)
    with torch.cuda.device_of(values):
        kernels.forward_kernel[launch.grid(*filters.shape[2:])](
            values,
            filters,
            mul,
            add,
            out,
            lse,
            launch.sizes,
            MUL=mul is not None,
            ADD=add is not None,
            **launch.options,
        )
    return out, lse


@torch.library.custom_op("attngraft::local_filter_backward", mutates_args=())
def weigh_backward(
    dout: Tensor,
    values: Tensor,
    filters: Tensor,
    mul: Tensor | None,
    add: Tensor | None,
    lse: Tensor,
    size: int,
    dilation: int,
    stride: int,
    softmax: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of values, filters, mul and add; of nothing where there is none."""
    gradients = _gradients(values, filters, mul, add)
    dvalues, dfilters, dmul, dadd = gradients
    if not (dout.numel() and values.numel()):
        for gradient in gradients:
            gradient.zero_()
        return gradients
    launch = _launch(values, filters, Neighborhood(size, dilation, stride), softmax)
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
            kernels.ghosts_kernel[(parts * launch.sizes[0] * size**2,)](
                *(values, filters, lse, dout, to_mul, to_add, launch.sizes, launch.batch, per_part),
                **has,
                **launch.options,
            )
    dfilters.copy_(to_filters)
    for gradient, found, ghost in ((dmul, to_mul, mul), (dadd, to_add, add)):
        if ghost is not None:
            gradient.copy_(found.sum(0))
    return gradients


def _outputs(values: Tensor, filters: Tensor, size: int, softmax: bool) -> tuple[Tensor, Tensor]:
    batch, maps, rows, columns = filters.shape
    lse = values.new_empty((batch, maps // size**2, rows, columns) if softmax else (0,), dtype=torch.float32)
    return values.new_empty(batch, values.shape[1], rows, columns), lse


def _gradients(
    values: Tensor, filters: Tensor, mul: Tensor | None, add: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_mul, of_add = (values.new_empty(0) if ghost is None else torch.empty_like(ghost) for ghost in (mul, add))
    return torch.empty_like(values), torch.empty_like(filters), of_mul, of_add


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *operands, size, dilation, stride, softmax = inputs
    ctx.save_for_backward(*operands, output[1])
    ctx.options = size, dilation, stride, softmax


def _backward(ctx: Any, dout: Tensor, _: Any) -> tuple[Any, ...]:
    *operands, lse = ctx.saved_tensors
    if torch.is_grad_enabled():  # these gradients are to be differentiated again
        return *differentiable(lambda *o: (_formula(*o, *ctx.options),), operands, (dout,)), *(None,) * 4
    found = weigh_backward(dout.contiguous(), *operands, lse, *ctx.options)
    return *(None if own is None else each for own, each in zip(operands, found, strict=True)), *(None,) * 4


def _formula(
    values: Tensor,
    filters: Tensor,
    mul: Tensor | None,
    add: Tensor | None,
    size: int,
    dilation: int,
    stride: int,
    softmax: bool,
) -> Tensor:
    return reference.local_filter(
        values, filters, mul, add, neighborhood=Neighborhood(size, dilation, stride), softmax=softmax
    )


def _flops(values: Any, filters: Any, mul: Any, add: Any, size: int, *_: Any, **__: Any) -> int:
    """As the other paths count: a multiply-add for every offset and channel of every pixel that gets something, another for
    each ghost matrix."""
    batch, _, rows, columns = filters
    ghosts = sum(ghost is not None for ghost in (mul, add))
    return int((1 + ghosts) * 2 * batch * rows * columns * values[1] * size**2)


weigh.register_fake(lambda values, filters, mul, add, size, *options: _outputs(values, filters, size, options[-1]))
weigh_backward.register_fake(lambda dout, *operands: _gradients(*operands[:4]))
weigh.register_autograd(_backward, setup_context=_setup)
register_flops(torch.ops.attngraft.local_filter, _flops)
register_flops(
    torch.ops.attngraft.local_filter_backward,
    lambda dout, values, filters, mul, add, lse, size, *_, **__: 2 * _flops(values, filters, mul, add, size),
)


def local_filter(
    values: Tensor,
    filters: Tensor,
    multiplier: Tensor | None,
    addend: Tensor | None,
    *,
    neighborhood: Neighborhood,
    softmax: bool,
) -> Tensor:
    """(B, C, Y', X')."""
    values, filters, mul, add = in_autocast_dtype(values, filters, multiplier, addend)
    ghosts = (None if ghost is None else ghost.flatten(1).contiguous() for ghost in (mul, add))
    near = neighborhood
    out, _ = weigh(values.contiguous(), filters.contiguous(), *ghosts, near.size, near.dilation, near.stride, softmax)
    return out
