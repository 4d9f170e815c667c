"""Tokens and attention maps, of windows or of one sequence, put back onto the map of the image.

`places` (rows, columns) says which token stands at each place, counted over the W windows of N tokens of one image, one
after another (W = 1: one sequence, in which prefix tokens come first). Tokens that stand nowhere (prefix, filling) are
left out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attngraft.errors import UsageError


def grid_at(
    seen: tuple[int, int], *, grid: tuple[int, int], made_for: tuple[int, int], tokens: int | None = None
) -> tuple[int, int] | None:
    """(rows, columns) that a host cuts images of `seen` pixels into, as it cuts those of `made_for` into `grid`.

    Args:
        seen: rows and columns of the images.
        grid: of images of the host's own size.
        made_for: that size.
        tokens: how many places there are. What is left over at a side is dropped by one host and filled up by another,
            which only their number tells.

    Returns:
        None where no such grid has so many places, or nothing tells which of two it is.
    """
    sides = list(zip(grid, seen, made_for, strict=True))
    rows, columns = (side * pixels // own for side, pixels, own in sides)
    filled_rows, filled_columns = (-(-side * pixels // own) for side, pixels, own in sides)
    found = {(rows, columns), (filled_rows, filled_columns)}
    fitting = [each for each in found if tokens is None or each[0] * each[1] == tokens]
    return fitting[0] if len(fitting) == 1 else None


def interleaved(grid: tuple[int, int], apart: tuple[int, int]) -> Tensor:
    """`places` of sequences whose tokens lie `apart` (rows, columns), each of `grid`: those between are of the others.

    The map is `grid` times `apart`, and sequences are numbered by where their first token lies, row by row.
    """
    down, across = (torch.arange(side * each) for side, each in zip(grid, apart, strict=True))
    sequence = (down % apart[0])[:, None] * apart[1] + across % apart[1]
    return sequence * (grid[0] * grid[1]) + (down // apart[0])[:, None] * grid[1] + across // apart[1]


def put_back(tokens: Tensor, places: Tensor) -> Tensor:
    """Tokens (B * W, N, ...) to the map (B, rows, columns, ...)."""
    windows = _windows(places, tokens.shape[1], tokens.shape[0])
    return tokens.unflatten(0, (-1, windows)).flatten(1, 2)[:, places]


def coordinates(places: Tensor, tokens: int) -> Tensor:
    """(W, N, 2): (row, column) of each token of each window, in parts of the map's sides; NaN where it stands nowhere."""
    rows, columns = places.shape
    windows = int(places.max()) // tokens + 1
    at = torch.full((windows * tokens, 2), math.nan, device=places.device)
    down, across = torch.meshgrid(torch.arange(rows) / rows, torch.arange(columns) / columns, indexing="ij")
    at[places.flatten()] = torch.stack([down.flatten(), across.flatten()], -1).to(places.device)
    return at.view(windows, tokens, 2)


def attention_map_for_query(weights: Tensor, places: Tensor, query: tuple[int, int]) -> Tensor:
    """Where the token at `query` (row, column) looks: maps (B * W, H, N, N) to (B, H, rows, columns), 0 outside its window.

    Raises:
        UsageError: the map has no such place, or its queries are not its keys.
    """
    row, column = _inside(query, *places.shape)
    windows, tokens = _square(weights, places)
    window, slot = divmod(int(places[row, column]), tokens)
    by_image = weights.unflatten(0, (-1, windows))
    seen = by_image.new_zeros(*by_image.shape[:1], by_image.shape[2], windows, tokens)
    seen[:, :, window] = by_image[:, window, :, slot]
    return seen.flatten(2)[..., places]


def whole_map(weights: Tensor, places: Tensor) -> Tensor:
    """Maps (B * W, H, N, N) to one map of the image (B, H, rows * columns, rows * columns), 0 between windows.

    It holds rows^2 * columns^2 numbers a head: for maps of 56 x 56 that is 39 MB in float32.
    """
    windows, tokens = _square(weights, places)
    window, slot = places.flatten() // tokens, places.flatten() % tokens
    by_image = weights.unflatten(0, (-1, windows)).transpose(1, 2)
    rows = by_image[:, :, window, slot]  # (B, H, places, N): the row of each place, in its own window
    dense = rows[..., slot]
    return dense.mul_(window[:, None] == window[None, :]) if windows > 1 else dense


def filter_map_for_query(filters: Tensor, query: tuple[int, int]) -> Tensor:
    """Where the place `query` looks: filters (B, H, K, rows, columns) of k x k neighborhoods to (B, H, rows, columns).

    Offsets are row-major, as the local operation has them. What a filter gives to places outside the map is left out.
    """
    rows, columns = filters.shape[-2:]
    row, column = _inside(query, rows, columns)
    size = _side(filters)
    around = filters.new_zeros(*filters.shape[:2], rows + size - 1, columns + size - 1)
    around[..., row : row + size, column : column + size] = filters[..., row, column].unflatten(-1, (size, size))
    reach = size // 2
    return around[..., reach : reach + rows, reach : reach + columns]


def scattered(filters: Tensor) -> Tensor:
    """Filters (B, H, K, rows, columns) of neighborhoods to one map (B, H, rows * columns, rows * columns), 0 elsewhere."""
    rows, columns = filters.shape[-2:]
    size = _side(filters)
    row, column = (axis.flatten() for axis in torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"))
    dense = filters.new_zeros(*filters.shape[:2], rows * columns, rows * columns)
    for offset in range(size**2):
        down, across = row + offset // size - size // 2, column + offset % size - size // 2
        here = ((down >= 0) & (down < rows) & (across >= 0) & (across < columns)).nonzero().squeeze(1)
        dense[..., here, (down * columns + across)[here]] = filters[:, :, offset].flatten(2)[..., here]
    return dense


def _side(filters: Tensor) -> int:
    """k of filters with K = k * k offsets."""
    size = math.isqrt(filters.shape[2])
    if size**2 != filters.shape[2] or size % 2 == 0:
        raise UsageError(f"{filters.shape[2]} offsets are no neighborhood of k x k places, k odd")
    return size


def _inside(query: tuple[int, int], rows: int, columns: int) -> tuple[int, int]:
    row, column = query
    if not (0 <= row < rows and 0 <= column < columns):
        raise UsageError(f"the map is {rows} x {columns}; it has no place ({row}, {column})")
    return row, column


def check_square(weights: Tensor) -> None:
    """
    Raises:
        UsageError: these are no maps whose queries are their keys.
    """
    if weights.ndim != 4 or weights.shape[-1] != weights.shape[-2]:
        raise UsageError(
            f"a tensor of shape {tuple(weights.shape)} is no map (B, H, N, N) whose queries are its keys; such a map alone "
            "can be put back on the image"
        )


def _square(weights: Tensor, places: Tensor) -> tuple[int, int]:
    """(W, N) of maps whose queries are their keys."""
    check_square(weights)
    return _windows(places, weights.shape[-1], weights.shape[0]), weights.shape[-1]


def _windows(places: Tensor, tokens: int, sequences: int) -> int:
    """How many windows one image has."""
    windows = int(torch.div(places.max(), tokens, rounding_mode="floor")) + 1
    if sequences % windows:
        raise UsageError(f"{sequences} sequences of {tokens} tokens are no windows of a map of {tuple(places.shape)}")
    return windows
