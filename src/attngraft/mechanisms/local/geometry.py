"""Neighborhoods and windows of a map: sizes, relative positions, and the pixels that may attend to each other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attngraft.errors import UsageError


@dataclass(frozen=True)
class Neighborhood:
    """A pixel's `size` x `size` neighbors, `dilation` apart, for every `stride`-th pixel.

    Raises:
        UsageError: the size is even, or dilation or stride are not positive.
    """

    size: int
    dilation: int = 1
    stride: int = 1

    def __post_init__(self) -> None:
        if self.size < 1 or self.size % 2 == 0:
            raise UsageError(f"kernel_size must be odd, so that each neighborhood has a center, not {self.size}")
        if self.dilation < 1 or self.stride < 1:
            raise UsageError(f"dilation and stride must be 1 or more, not {self.dilation} and {self.stride}")

    @property
    def offsets(self) -> int:
        """Number of offsets, K."""
        return self.size**2

    @property
    def radius(self) -> int:
        """Distance of the outermost neighbors, the zero padding on each side of a map."""
        return self.size // 2 * self.dilation

    @property
    def reach(self) -> int:
        """Distance from the first neighbor of a row to the last."""
        return 2 * self.radius


def split_windows(x: Tensor, window: int) -> Tensor:
    """Return (B, Y, X, C) as (B, windows, window^2, C); `window` divides Y and X."""
    batch, rows, columns, channels = x.shape
    x = x.reshape(batch, rows // window, window, columns // window, window, channels)
    return x.transpose(2, 3).reshape(batch, -1, window**2, channels)


def join_windows(windows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Invert `split_windows`; `sizes` are those of the map."""
    (rows, columns), size = sizes, math.isqrt(windows.shape[2])
    x = windows.reshape(windows.shape[0], rows // size, columns // size, size, size, -1)
    return x.transpose(2, 3).reshape(windows.shape[0], rows, columns, -1)


def relative_positions(rows: int, columns: int) -> Tensor:
    """Return the index of each key's position relative to each query, (rows columns, rows columns).

    It is an index into a table of (2 rows - 1) (2 columns - 1) relative positions, key minus query.
    """
    down, right = (axis[None, :] - axis[:, None] + len(axis) - 1 for axis in map(torch.arange, (rows, columns)))
    indices = down[:, None, :, None] * (2 * columns - 1) + right[None, :, None, :]  # of (query, key)
    return indices.reshape(rows * columns, rows * columns)


def shifted_window_mask(sizes: Sequence[int], window: int, shift: int, device: torch.device | None = None) -> Tensor:
    """Return the attention mask of a map rolled by `shift`, (windows, window^2, window^2); True for pairs that attend.

    Rolling brings pixels from opposite ends of the map into one window; those do not attend to each other.
    """
    parts = []
    for size in sizes:
        index = torch.arange(size, device=device)
        parts.append((index >= size - window).long() + (index >= size - shift).long())
    regions = 3 * parts[0][:, None] + parts[1][None, :]
    by_window = split_windows(regions[None, :, :, None], window)[0, :, :, 0]
    return by_window[:, :, None] == by_window[:, None, :]
