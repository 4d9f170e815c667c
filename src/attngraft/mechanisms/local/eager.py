"""Local attention in optimized PyTorch: no tensor is k * k times as large as the values.

The static addend is a depthwise convolution in channels-last layout, in which its weight gradient is fast. The rest are
custom operations with an explicit backward, which process images one by one (small ones stacked) in strips of rows. Their
tensors are contiguous with channels last, (B, Y, X, C) and (B, Y', X', H K), and have one dtype, float32 or float64.

The reference runs if plain operations are required; on "meta" the custom operations run, for their FLOP counts.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.dispatch.autograd import accumulation_dtype, custom_op, empty_gradients, needs_aten_ops
from attngraft.mechanisms.local import compiled, reference, shifted
from attngraft.mechanisms.local.banded import Band, Mirrored, PaddedValues, Products, Stack, Strip
from attngraft.mechanisms.local.geometry import Neighborhood
from attngraft.mechanisms.local.shifted import Shifted, Sums


def local_filter(
    values: Tensor,
    filters: Tensor,
    multiplier: Tensor | None,
    addend: Tensor | None,
    *,
    neighborhood: Neighborhood,
    softmax: bool,
) -> Tensor:
    """Return the filtered map (B, C, Y', X'), channels last in memory."""
    if needs_aten_ops(values, filters, multiplier, addend) and not values.is_meta:
        return reference.local_filter(values, filters, multiplier, addend, neighborhood=neighborhood, softmax=softmax)
    near, dtype = neighborhood, accumulation_dtype(values)
    with _without_autocast(values):
        image, weights = (tensor.to(dtype).permute(0, 2, 3, 1).contiguous() for tensor in (values, filters))
        if addend is not None:
            addend = addend.to(dtype)
        if _is_compiled(image) and _is_banded(near, multiplier):
            by_head = _weights(weights.unflatten(-1, (-1, near.offsets)), softmax, -1).flatten(3)
            out = compiled.WeightedSum.apply(image, by_head, addend, near.size, near.dilation)
            return out.permute(0, 3, 1, 2).to(values.dtype)
        by_channel = None if multiplier is None else multiplier.to(dtype)
        out = apply_filters(image, weights, by_channel, near.size, near.dilation, near.stride, softmax)
        out = out.permute(0, 3, 1, 2)
        if addend is not None:
            static = addend.unsqueeze(1)
            added = F.conv2d(
                image.permute(0, 3, 1, 2), static, None, near.stride, near.radius, near.dilation, len(static)
            )
            # in place, because allocating another map takes longer than the addition
            out = added[:, :, : filters.shape[2], : filters.shape[3]].add_(out)
    return out.to(values.dtype)


def local_scores(queries: Tensor, keys: Tensor, *, heads: int, neighborhood: Neighborhood) -> Tensor:
    """Return the scores of all neighbors (B, H K, Y, X), channels last in memory."""
    if needs_aten_ops(queries, keys) and not queries.is_meta:
        return reference.local_scores(queries, keys, heads=heads, neighborhood=neighborhood)
    dtype = accumulation_dtype(queries)
    with _without_autocast(queries):
        both = (tensor.to(dtype).permute(0, 2, 3, 1).contiguous() for tensor in (queries, keys))
        score: Any = compiled.Scores.apply if _is_compiled(queries) else compute_scores
        scores = score(*both, heads, neighborhood.size, neighborhood.dilation)
    return scores.permute(0, 3, 1, 2).to(queries.dtype)


def _is_compiled(tensor: Tensor) -> bool:
    """Return whether the loops of a compiler replace the custom operations."""
    return torch.compiler.is_compiling() and tensor.device.type == "cpu"


def _without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Disable autocast, which does not support "meta"."""
    return nullcontext() if tensor.is_meta else torch.autocast(tensor.device.type, enabled=False)


# -- filters -----------------------------------------------------------------------------------------------------------


def _filter_formula(values: Tensor, filters: Tensor, multiplier: Tensor | None, *options: Any) -> tuple[Tensor]:
    *sizes, softmax = options
    first = values.permute(0, 3, 1, 2), filters.permute(0, 3, 1, 2)
    out = reference.local_filter(*first, multiplier, None, neighborhood=Neighborhood(*sizes), softmax=softmax)
    return (out.permute(0, 2, 3, 1),)


def _empty_output(values: Tensor, filters: Tensor, *_: Any) -> Tensor:
    return values.new_empty(*filters.shape[:3], values.shape[3])


def _filter_flops(values: Any, filters: Any, multiplier: Any, size: int, *_: Any) -> int:
    """Count one multiply-add per offset, channel and output pixel, two with a multiplier.

    With a multiplier, every channel has different weights. The paper counts in the same way.
    """
    batch, rows, columns, _ = filters
    return int((1 if multiplier is None else 2) * 2 * batch * rows * columns * values[3] * size**2)


def _filters_backward(to_outputs: Any, operands: Any, saved: Any, *options: Any) -> tuple[Tensor, ...]:
    """Return the gradients of values, filters and multiplier; an empty tensor if there is no multiplier."""
    (to_out,), (values, filters, multiplier), (*sizes, softmax) = to_outputs, operands, options
    near = Neighborhood(*sizes)
    if not values.numel():
        return tuple(gradient.zero_() for gradient in empty_gradients(*operands))
    stack = Stack.of(values, filters.shape[3] // near.offsets, near)
    to_out, values, filters = (stack.stack(tensor.contiguous()) for tensor in (to_out, values, filters))
    to_values, to_filters, to_multiplier = empty_gradients(values, filters, multiplier)
    heads = filters.shape[3] // near.offsets
    if _is_banded(near, multiplier):
        strip = Strip.of(values, heads, near)
        padded, padded_gradient = PaddedValues(strip, values), PaddedValues(strip, values)
        band, products = Band(strip, values), Products(strip, values)
        mirrored = Mirrored(strip, values, values.shape[1])
        for image in range(len(values)):
            mirrored.weights.copy_(_weights(filters[image].unflatten(-1, (heads, near.offsets)), softmax, -1))
            for rows in strip.steps(values.shape[1]):
                count = len(to_values[image, rows])
                padded.fill(values[image], rows.start)
                padded_gradient.fill(to_out[image], rows.start)
                to_weights = products.of(padded_gradient, padded, count)
                to_rows = to_filters[image, rows].unflatten(-1, (heads, -1))
                _fill_filter_gradient(to_rows, to_weights, mirrored.weights[rows], softmax, -1)
                band.sums(mirrored.rows(rows.start, count), padded_gradient, to_values[image, rows])
        return stack.unstack(to_values), stack.unstack(to_filters), to_multiplier
    # (C, k, k) as (K, H, D, 1, 1)
    by_offset: Any = None
    if multiplier is not None:
        by_offset = multiplier.flatten(1).t().contiguous().view(-1, heads, len(multiplier) // heads, 1, 1)
    to_by_offset = None if by_offset is None else torch.zeros_like(by_offset)
    shifts, to_shifts = (Shifted(values[0], heads, near, sizes=filters.shape[1:3]) for _ in range(2))
    shape = heads, values.shape[3] // heads, *filters.shape[1:3]
    to_image, *buffers = (values.new_empty(shape) for _ in range(3))
    for image in range(len(values)):
        weights = _weights(_maps(filters[image], heads), softmax, 1)
        shifts.inside.copy_(values[image])
        to_image.flatten(0, 1).copy_(to_out[image].permute(2, 0, 1))
        to_weights = torch.empty_like(weights)
        shifted.gradients(shifts, to_shifts, weights, by_offset, to_image, to_weights, to_by_offset, buffers)
        to_values[image].copy_(to_shifts.inside)
        to_rows = to_filters[image].unflatten(-1, (heads, -1)).permute(2, 3, 0, 1)
        _fill_filter_gradient(to_rows, to_weights, weights, softmax, 1)
    if to_by_offset is not None:
        to_multiplier.copy_(to_by_offset.flatten(1).t().view(to_multiplier.shape))
    return stack.unstack(to_values), stack.unstack(to_filters), to_multiplier


@custom_op(
    "local_filter_lean",
    backward=_filters_backward,
    formula=_filter_formula,
    outputs=_empty_output,
    flops=_filter_flops,
)
def apply_filters(
    values: Tensor, filters: Tensor, multiplier: Tensor | None, size: int, dilation: int, stride: int, softmax: bool
) -> Tensor:
    """Return the filtered map (B, Y', X', C)."""
    near = Neighborhood(size, dilation, stride)
    if not values.numel():
        return _empty_output(values, filters)
    stack = Stack.of(values, filters.shape[3] // near.offsets, near)
    values, filters = stack.stack(values), stack.stack(filters)
    out, heads = _empty_output(values, filters), filters.shape[3] // near.offsets
    if _is_banded(near, multiplier):
        strip = Strip.of(values, heads, near)
        padded, band = PaddedValues(strip, values), Band(strip, values)
        for image in range(len(values)):
            for rows in strip.steps(values.shape[1]):
                weights = _weights(filters[image, rows].unflatten(-1, (heads, -1)), softmax, -1)
                padded.fill(values[image], rows.start)
                band.sums(_by_rows(weights, near), padded, out[image, rows])
        return stack.unstack(out)
    by_channel = values.new_ones(values.shape[3], near.offsets) if multiplier is None else multiplier.flatten(1)
    shifts = Shifted(values[0], heads, near, sizes=filters.shape[1:3])
    sums = Sums(shifts, by_channel)
    for image in range(len(values)):
        shifts.inside.copy_(values[image])
        sums.fill(_weights(_maps(filters[image], heads), softmax, 1), out[image])
    return stack.unstack(out)


def _is_banded(neighborhood: Neighborhood, multiplier: Tensor | None) -> bool:
    """Return whether the output can be computed with matrix products (banded.py)."""
    return multiplier is None and neighborhood.stride == 1


def _by_rows(weights: Tensor, near: Neighborhood) -> Tensor:
    """Return (rows, X, H, K) as (k, rows, H, X, k), for `Band.sums`."""
    return weights.unflatten(-1, (near.size, near.size)).permute(3, 0, 2, 1, 4)


def _weights(filters: Tensor, softmax: bool, dim: int) -> Tensor:
    return torch.softmax(filters, dim) if softmax else filters


def _fill_filter_gradient(to_filters: Tensor, to_weights: Tensor, weights: Tensor, softmax: bool, dim: int) -> None:
    if softmax:
        to_weights = torch._softmax_backward_data(to_weights.contiguous(), weights.contiguous(), dim, weights.dtype)
    to_filters.copy_(to_weights)


def _maps(filters: Tensor, heads: int) -> Tensor:
    """Return (Y', X', H K) as contiguous (H, K, Y', X'); copying it as the transpose of a matrix is faster."""
    return filters.flatten(0, 1).t().contiguous().view(heads, -1, *filters.shape[:2])


# -- scores: q_i . k_(i + d o) per head; k = 0 outside of the map. Their gradients are weighted sums over neighbors ------


def _score_formula(queries: Tensor, keys: Tensor, heads: int, *sizes: int) -> tuple[Tensor]:
    first = queries.permute(0, 3, 1, 2), keys.permute(0, 3, 1, 2)
    return (reference.local_scores(*first, heads=heads, neighborhood=Neighborhood(*sizes)).permute(0, 2, 3, 1),)


def _empty_scores(queries: Tensor, keys: Tensor, heads: int, size: int, dilation: int) -> Tensor:
    return queries.new_empty(*queries.shape[:3], heads * size**2)


def _score_flops(queries: Any, keys: Any, heads: int, size: int, *_: Any) -> int:
    """Count one multiply-add per offset, channel and pixel."""
    batch, rows, columns, channels = queries
    return int(2 * batch * rows * columns * channels * size**2)


def _scores_backward(to_outputs: Any, operands: Any, saved: Any, heads: int, *sizes: int) -> tuple[Tensor, ...]:
    """Return the gradients of queries and keys."""
    (to_scores,), (queries, keys), near = to_outputs, operands, Neighborhood(*sizes)
    if not queries.numel():
        return empty_gradients(*operands)
    stack = Stack.of(queries, heads, near)
    to_scores, queries, keys = (stack.stack(tensor.contiguous()) for tensor in (to_scores, queries, keys))
    to_queries, to_keys = empty_gradients(queries, keys)
    strip = Strip.of(queries, heads, near)
    padded_queries, padded_keys = PaddedValues(strip, queries), PaddedValues(strip, keys)
    band, mirrored = Band(strip, keys), Mirrored(strip, keys, keys.shape[1])
    for image in range(len(queries)):
        weights = to_scores[image].unflatten(-1, (heads, near.offsets))
        mirrored.weights.copy_(weights)
        for rows in strip.steps(queries.shape[1]):
            count = len(weights[rows])
            padded_queries.fill(queries[image], rows.start)
            padded_keys.fill(keys[image], rows.start)
            band.sums(_by_rows(weights[rows], near), padded_keys, to_queries[image, rows])
            band.sums(mirrored.rows(rows.start, count), padded_queries, to_keys[image, rows])
    return stack.unstack(to_queries), stack.unstack(to_keys)


@custom_op(
    "local_scores_lean",
    backward=_scores_backward,
    formula=_score_formula,
    outputs=_empty_scores,
    flops=_score_flops,
)
def compute_scores(queries: Tensor, keys: Tensor, heads: int, size: int, dilation: int) -> Tensor:
    """Return the scores of all neighbors (B, Y, X, H K)."""
    near = Neighborhood(size, dilation)
    if not queries.numel():
        return _empty_scores(queries, keys, heads, size, dilation).zero_()
    stack = Stack.of(queries, heads, near)
    queries, keys = stack.stack(queries), stack.stack(keys)
    out = _empty_scores(queries, keys, heads, size, dilation)
    strip = Strip.of(queries, heads, near)
    padded_queries, padded_keys = PaddedValues(strip, queries), PaddedValues(strip, keys)
    products = Products(strip, queries)
    for image in range(len(queries)):
        for rows in strip.steps(queries.shape[1]):
            part = out[image, rows].unflatten(-1, (heads, -1))
            padded_queries.fill(queries[image], rows.start)
            padded_keys.fill(keys[image], rows.start)
            part.copy_(products.of(padded_queries, padded_keys, len(part)))
    return stack.unstack(out)
