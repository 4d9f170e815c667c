"""Swin's windows on a map (B, Y, X, C): in and out, their relative places, and who sees whom once they are shifted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def split_windows(x: Tensor, window: int) -> Tensor:
    """(B, Y, X, C) to (B, windows, window^2, C); `window` divides Y and X."""
    batch, rows, columns, channels = x.shape
    x = x.reshape(batch, rows // window, window, columns // window, window, channels)
    return x.transpose(2, 3).reshape(batch, -1, window**2, channels)


def join_windows(windows: Tensor, sizes: Sequence[int]) -> Tensor:
    """The opposite of `split_windows`, for a map of `sizes`."""
    (rows, columns), size = sizes, math.isqrt(windows.shape[2])
    x = windows.reshape(windows.shape[0], rows // size, columns // size, size, size, -1)
    return x.transpose(2, 3).reshape(windows.shape[0], rows, columns, -1)


def relative_places(rows: int, columns: int) -> Tensor:
    """(rows columns, rows columns): for every query and key the place, in a table of (2 rows - 1) (2 columns - 1), of key
    minus query."""
    down, right = (axis[None, :] - axis[:, None] + len(axis) - 1 for axis in map(torch.arange, (rows, columns)))
    places = down[:, None, :, None] * (2 * columns - 1) + right[None, :, None, :]  # of (query, key)
    return places.reshape(rows * columns, rows * columns)


def neighbors_before(sizes: Sequence[int], window: int, shift: int, device: torch.device | None = None) -> Tensor:
    """Who was in one window's reach before the map was rolled by `shift`, (windows, window^2, window^2), boolean.

    Rolling brings pixels from opposite ends of the map into one window; those do not see each other.
    """
    parts = []
    for size in sizes:
        place = torch.arange(size, device=device)
        parts.append((place >= size - window).long() + (place >= size - shift).long())
    regions = 3 * parts[0][:, None] + parts[1][None, :]
    own = split_windows(regions[None, :, :, None], window)[0, :, :, 0]
    return own[:, :, None] == own[:, None, :]
