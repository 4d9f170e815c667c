"""Local attention in lean PyTorch: nothing is k * k times as large as the values.

The addend, which no pixel moves, is a depthwise convolution; its tensors have their channels last, where its weights'
gradient is not slow. The rest is one custom operation (lean.py). Who must see plain operations gets the
equation; who only counts, on "meta", the custom operation, which says what it costs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.dispatch.formula import accurate, plain_wanted
from attngraft.mechanisms.local import reference
from attngraft.mechanisms.local.lean import weigh
from attngraft.mechanisms.local.offsets import Neighborhood
from attngraft.mechanisms.local.scores import score


def local_filter(
    values: Tensor,
    filters: Tensor,
    multiplier: Tensor | None,
    addend: Tensor | None,
    *,
    neighborhood: Neighborhood,
    softmax: bool,
) -> Tensor:
    """(B, C, Y', X'), channels last in memory."""
    if plain_wanted(values, filters, multiplier, addend) and not values.is_meta:
        return reference.local_filter(values, filters, multiplier, addend, neighborhood=neighborhood, softmax=softmax)
    near, dtype = neighborhood, accurate(values)
    with _plain_precision(values):
        image, weights = (tensor.to(dtype).permute(0, 2, 3, 1).contiguous() for tensor in (values, filters))
        by = None if multiplier is None else multiplier.to(dtype)
        found = weigh(image, weights, by, near.size, near.dilation, near.stride, softmax).permute(0, 3, 1, 2)
        if addend is not None:
            # in place: the sum would be another map, whose fresh memory takes longer than to add
            found = _convolved(image.permute(0, 3, 1, 2), addend.to(dtype), near, filters).add_(found)
    return found.to(values.dtype)


def local_scores(queries: Tensor, keys: Tensor, *, heads: int, neighborhood: Neighborhood) -> Tensor:
    """(B, H K, Y, X), channels last in memory."""
    if plain_wanted(queries, keys) and not queries.is_meta:
        return reference.local_scores(queries, keys, heads=heads, neighborhood=neighborhood)
    dtype = accurate(queries)
    with _plain_precision(queries):
        own, near = (tensor.to(dtype).permute(0, 2, 3, 1).contiguous() for tensor in (queries, keys))
        found = score(own, near, heads, neighborhood.size, neighborhood.dilation)
    return found.permute(0, 3, 1, 2).to(queries.dtype)


def _plain_precision(tensor: Tensor) -> AbstractContextManager[Any]:
    """Without autocast, which "meta" does not know."""
    return nullcontext() if tensor.is_meta else torch.autocast(tensor.device.type, enabled=False)


def _convolved(values: Tensor, addend: Tensor, near: Neighborhood, filters: Tensor) -> Tensor:
    """The sum over neighbors by the addend alone."""
    found = F.conv2d(
        values,
        addend.unsqueeze(1),
        stride=near.stride,
        padding=near.radius,
        dilation=near.dilation,
        groups=len(addend),
    )
    return found[:, :, : filters.shape[2], : filters.shape[3]]
