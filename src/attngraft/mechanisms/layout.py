"""Heads as (B, N, H, width) in memory, so that they join to tokens without a copy; everybody sees (B, H, N, width)."""

from __future__ import annotations

from torch import Tensor


def room(side: Tensor, values: Tensor) -> Tensor:
    """An empty (B, H, N, width) in this layout: B, H and N of `side`, width and dtype of `values` (..., width)."""
    batch, heads, tokens = side.shape[:3]
    return values.new_empty(batch, tokens, heads, values.shape[-1]).transpose(1, 2)


def as_rows(tensor: Tensor) -> Tensor:
    """(B, H, N, width) as contiguous rows (B * N * H, width); no copy of what has this layout."""
    return tensor.transpose(1, 2).contiguous().view(-1, tensor.shape[-1])
