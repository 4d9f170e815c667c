"""Tensor layouts of timm's hosts: heads, maps, windows."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from timm.models.swin_transformer import window_partition, window_reverse
from torch import Tensor


def split_qkv(qkv: Tensor, heads: int, parts: int = 3) -> tuple[Tensor, ...]:
    """Split the output of a fused projection (B, N, parts H d) into q, k and v (or fewer), (B, H, N, d) each."""
    return qkv.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, N, H d) to (B, H, N, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def map_to_tokens(x: Tensor) -> Tensor:
    """View a map (B, C, rows, columns) as tokens (B, N, C)."""
    return x.flatten(2).transpose(1, 2)


def tokens_to_map(x: Tensor, grid: tuple[int, ...]) -> Tensor:
    """View tokens (B, N, C) as a map (B, C, rows, columns); the inverse of `map_to_tokens`."""
    return x.transpose(1, 2).unflatten(2, grid)


def match_memory_format(x: Tensor, like: Tensor) -> Tensor:
    """Return the map `x` in the memory format of the map `like`.

    After a graft, tokens are contiguous, so their map is channels-last. A convolution chooses another algorithm for that,
    with other rounding.
    """
    channels_last = like.is_contiguous(memory_format=torch.channels_last) and not like.is_contiguous()
    return x.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def pad_to_windows(maps: Tensor, window: tuple[int, int]) -> Tensor:
    """Zero-pad maps (B, rows, columns, C) to whole windows."""
    rows, columns = (-side % each for side, each in zip(maps.shape[1:3], window, strict=True))
    return F.pad(maps, (0, 0, 0, columns, 0, rows))


def partition(maps: Tensor, window: tuple[int, int]) -> Tensor:
    """Partition maps of whole windows (B, rows, columns, C) into windows (B * windows, N, C)."""
    return cast(Tensor, window_partition(maps, window).flatten(1, 2))


def merge_windows(windows: Tensor, window: tuple[int, int], grid: tuple[int, ...]) -> Tensor:
    """Merge windows (B * windows, N, C) into maps of size `grid`; the inverse of `pad_to_windows` and `partition`."""
    padded = (side + -side % each for side, each in zip(grid, window, strict=True))
    maps = window_reverse(windows.unflatten(1, window), window, *padded)
    return cast(Tensor, maps[:, : grid[0], : grid[1]])


def present_tokens(x: Tensor, window: tuple[int, int], grid: tuple[int, ...]) -> Tensor | None:
    """Return a mask (windows of one image, N), False for window padding, on the device of `x`; None: no padding."""
    if not any(side % each for side, each in zip(grid, window, strict=True)):
        return None
    return partition(pad_to_windows(x.new_ones(1, *grid, 1), window), window).squeeze(-1) > 0
