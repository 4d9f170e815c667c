"""Local attention as a custom operation with a written-out backward: image by image, several small ones as one, a strip of
rows at a time.

Tensors here have their channels last, (B, Y, X, C) and (B, Y', X', H K), are contiguous, and of one dtype, float32 or
float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attngraft.dispatch.flops import register_flops
from attngraft.dispatch.formula import differentiable
from attngraft.mechanisms.local import reference, shifted
from attngraft.mechanisms.local.banded import Band, Mirrored, Padded, Products
from attngraft.mechanisms.local.offsets import Neighborhood, Strip
from attngraft.mechanisms.local.shifted import Shifted, Sums
from attngraft.mechanisms.local.stack import Stack

#: places that are multiplied at a time: more make larger products, of which more is zero
BLOCK = 16
#: numbers in a strip's values, about: what stays in the cache from one row of the neighborhood to the next
NUMBERS = 2**19


@torch.library.custom_op("attngraft::local_filter_lean", mutates_args=())
def weigh(
    values: Tensor, filters: Tensor, multiplier: Tensor | None, size: int, dilation: int, stride: int, softmax: bool
) -> Tensor:
    """(B, Y', X', C)."""
    near = Neighborhood(size, dilation, stride)
    if not values.numel():
        return _room(values, filters)
    stack = Stack.of(values, filters.shape[3] // near.offsets, near, apart=BLOCK)
    return stack.down(_weigh(stack.up(values), stack.up(filters), multiplier, near, softmax))


def _weigh(values: Tensor, filters: Tensor, multiplier: Tensor | None, near: Neighborhood, softmax: bool) -> Tensor:
    out, heads = _room(values, filters), filters.shape[3] // near.offsets
    if banded(near, multiplier):
        strip = strip_of(values, heads, near)
        padded, band = Padded(strip, values), Band(strip, values)
        for image in range(len(values)):
            for start in range(0, values.shape[1], strip.rows):
                rows = slice(start, start + strip.rows)
                weights = _weights(filters[image, rows].unflatten(-1, (heads, -1)), softmax, -1)
                padded.fill(values[image], start)
                band.sums(by_rows(weights, near), padded, out[image, rows])
        return out
    by = values.new_ones(values.shape[3], near.offsets) if multiplier is None else multiplier.flatten(1)
    seen = Shifted(values[0], heads, near, sizes=filters.shape[1:3])
    sums = Sums(seen, by)
    for image in range(len(values)):
        seen.inside.copy_(values[image])
        sums.fill(_weights(_maps(filters[image], heads), softmax, 1), out[image])
    return out


@torch.library.custom_op("attngraft::local_filter_lean_backward", mutates_args=())
def weigh_backward(
    to_out: Tensor,
    values: Tensor,
    filters: Tensor,
    multiplier: Tensor | None,
    size: int,
    dilation: int,
    stride: int,
    softmax: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of values, filters and multiplier; where there is no multiplier, of no numbers."""
    near = Neighborhood(size, dilation, stride)
    if not values.numel():
        to_values, to_filters, to_multiplier = _gradients(values, filters, multiplier)
        return to_values.zero_(), to_filters.zero_(), to_multiplier.zero_()
    stack = Stack.of(values, filters.shape[3] // near.offsets, near, apart=BLOCK)
    operands = stack.up(values), stack.up(filters), multiplier
    to_values, to_filters, to_multiplier = _weigh_backward(stack.up(to_out), *operands, near, softmax)
    return stack.down(to_values), stack.down(to_filters), to_multiplier


def _weigh_backward(
    to_out: Tensor, values: Tensor, filters: Tensor, multiplier: Tensor | None, near: Neighborhood, softmax: bool
) -> tuple[Tensor, Tensor, Tensor]:
    found = to_values, to_filters, to_multiplier = _gradients(values, filters, multiplier)
    heads = filters.shape[3] // near.offsets
    if banded(near, multiplier):
        strip = strip_of(values, heads, near)
        padded, given = Padded(strip, values), Padded(strip, values)
        band, products = Band(strip, values), Products(strip, values)
        mirrored = Mirrored(strip, values, values.shape[1])
        for image in range(len(values)):
            of_image = filters[image].unflatten(-1, (heads, near.offsets))
            mirrored.weights.copy_(_weights(of_image, softmax, -1))
            for start in range(0, values.shape[1], strip.rows):
                rows = slice(start, start + strip.rows)
                count = len(to_values[image, rows])
                padded.fill(values[image], start)
                given.fill(to_out[image], start)
                to_weights = products.of(given, padded, count)
                _fill(
                    to_filters[image, rows].unflatten(-1, (heads, -1)), to_weights, mirrored.weights[rows], softmax, -1
                )
                band.sums(mirrored.seen(start, count), given, to_values[image, rows])
        return found
    by = _by_offset(multiplier, heads)
    to_by = None if by is None else torch.zeros_like(by)
    seen, to_seen = (Shifted(values[0], heads, near, sizes=filters.shape[1:3]) for _ in range(2))
    arriving, room, more = (_of_one_image(to_out, heads) for _ in range(3))
    for image in range(len(values)):
        weights = _weights(_maps(filters[image], heads), softmax, 1)
        seen.inside.copy_(values[image])
        arriving.flatten(0, 1).copy_(to_out[image].permute(2, 0, 1))
        to_weights = torch.empty_like(weights)
        shifted.gradients(seen, to_seen, weights, by, arriving, to_weights, to_by, (room, more))
        to_values[image].copy_(to_seen.inside)
        _fill(to_filters[image].unflatten(-1, (heads, -1)).permute(2, 3, 0, 1), to_weights, weights, softmax, 1)
    if to_by is not None:
        to_multiplier.copy_(to_by.flatten(1).t().view(to_multiplier.shape))
    return found


def banded(neighborhood: Neighborhood, multiplier: Tensor | None) -> bool:
    """Whether products of matrices do it."""
    return multiplier is None and neighborhood.stride == 1


def strip_of(values: Tensor, heads: int, neighborhood: Neighborhood) -> Strip:
    """As many rows of an image as stay in the cache, at least a neighborhood's."""
    _, height, width, channels = values.shape
    rows = max(NUMBERS // (width * channels), neighborhood.reach + 1)
    return Strip(neighborhood, min(rows, height), width, heads, BLOCK)


def by_rows(weights: Tensor, near: Neighborhood) -> Tensor:
    """(rows, X, H, K) as `Band.sums` takes them, (k, rows, H, X, k)."""
    return weights.unflatten(-1, (near.size, near.size)).permute(3, 0, 2, 1, 4)


def _weights(filters: Tensor, softmax: bool, over: int) -> Tensor:
    return torch.softmax(filters, over) if softmax else filters


def _fill(to_filters: Tensor, to_weights: Tensor, weights: Tensor, softmax: bool, over: int) -> None:
    """With the gradient of what the weights were made of."""
    if softmax:
        to_weights = torch._softmax_backward_data(to_weights.contiguous(), weights.contiguous(), over, weights.dtype)
    to_filters.copy_(to_weights)


def _maps(filters: Tensor, heads: int) -> Tensor:
    """(Y', X', H K) as (H, K, Y', X'), contiguous: as the transpose of a matrix, which is copied faster."""
    return filters.flatten(0, 1).t().contiguous().view(heads, -1, *filters.shape[:2])


def _by_offset(multiplier: Tensor | None, heads: int) -> Tensor | None:
    """(C, k, k) as (K, H, D, 1, 1)."""
    if multiplier is None:
        return None
    return multiplier.flatten(1).t().contiguous().view(-1, heads, len(multiplier) // heads, 1, 1)


def _of_one_image(maps: Tensor, heads: int) -> Tensor:
    """Room for an image of (B, Y', X', C) as (H, D, Y', X')."""
    _, rows, columns, channels = maps.shape
    return maps.new_empty(heads, channels // heads, rows, columns)


def _room(values: Tensor, filters: Tensor) -> Tensor:
    return values.new_empty(*filters.shape[:3], values.shape[3])


def _gradients(values: Tensor, filters: Tensor, multiplier: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    of_multiplier = values.new_empty(0) if multiplier is None else torch.empty_like(multiplier)
    return torch.empty_like(values), torch.empty_like(filters), of_multiplier


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *operands, size, dilation, stride, softmax = inputs
    ctx.save_for_backward(*operands)
    ctx.options = size, dilation, stride, softmax


def _backward(ctx: Any, to_out: Tensor) -> tuple[Any, ...]:
    values, filters, multiplier = ctx.saved_tensors
    if torch.is_grad_enabled():  # these gradients are to be differentiated again
        return *differentiable(lambda *o: (_formula(*o, *ctx.options),), ctx.saved_tensors, (to_out,)), *(None,) * 4
    to_values, to_filters, to_multiplier = weigh_backward(
        to_out.contiguous(), values, filters, multiplier, *ctx.options
    )
    return to_values, to_filters, None if multiplier is None else to_multiplier, *(None,) * 4


def _formula(
    values: Tensor, filters: Tensor, multiplier: Tensor | None, size: int, dilation: int, stride: int, softmax: bool
) -> Tensor:
    near = Neighborhood(size, dilation, stride)
    first = values.permute(0, 3, 1, 2), filters.permute(0, 3, 1, 2)
    return reference.local_filter(*first, multiplier, None, neighborhood=near, softmax=softmax).permute(0, 2, 3, 1)


def _flops(values: Any, filters: Any, multiplier: Any, size: int, *_: Any, **__: Any) -> int:
    """A multiply-add for every offset and channel of every pixel that gets something; another where a multiplier makes the
    weight of each of these its own, as the paper's numbers have it."""
    batch, rows, columns, _ = filters
    return int((1 if multiplier is None else 2) * 2 * batch * rows * columns * values[3] * size**2)


weigh.register_fake(lambda values, filters, *_: _room(values, filters))
weigh_backward.register_fake(lambda to_out, values, filters, multiplier, *_: _gradients(values, filters, multiplier))
weigh.register_autograd(_backward, setup_context=_setup)
register_flops(torch.ops.attngraft.local_filter_lean, _flops)
register_flops(  # one for the weights' gradient, one for the values'; a multiplier's product with weights has two of its own
    torch.ops.attngraft.local_filter_lean_backward,
    lambda to_out, *operands, **options: 2 * _flops(*operands, **options),
)
