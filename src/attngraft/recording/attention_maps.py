"""Mapping tokens and attention maps of windows or of one sequence back to the image.

`token_indices` (rows, columns) contains the index of the token at each position of the map, counted over the W windows of N
tokens of one image, window by window (W = 1: one sequence, prefix tokens first). Tokens that are not on the map (prefix,
padding) are left out.
"""

import math

import torch
from torch import Tensor

from attngraft.errors import UsageError


def scaled_grid(
    image_size: tuple[int, int], *, grid: tuple[int, int], default_size: tuple[int, int], tokens: int | None = None
) -> tuple[int, int] | None:
    """Return the grid (rows, columns) of an image of `image_size`.

    The host divides an image of `default_size` into `grid`.

    Args:
        image_size: rows and columns of the image in pixels.
        grid: grid of an image of the host's default size.
        default_size: the host's default size, rows and columns in pixels.
        tokens: number of grid positions. Some hosts drop the pixels beyond the last whole patch, others pad them to
            one more patch; the number of tokens distinguishes the two cases.

    Returns:
        The grid; None if no possible grid has `tokens` positions, or if several grids are possible.
    """
    sides = list(zip(grid, image_size, default_size, strict=True))
    rows, columns = (side * pixels // default for side, pixels, default in sides)
    padded_rows, padded_columns = (-(-side * pixels // default) for side, pixels, default in sides)
    candidates = {(rows, columns), (padded_rows, padded_columns)}
    fitting = [each for each in candidates if tokens is None or each[0] * each[1] == tokens]
    return fitting[0] if len(fitting) == 1 else None


def interleaved_indices(grid: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Return the token indices of interleaved sequences of `grid`.

    Neighboring tokens of a sequence are `stride` (rows, columns) apart. The map has `grid` times `stride` positions, and
    sequences are numbered by their first token, row by row.
    """
    row, column = (torch.arange(side * each) for side, each in zip(grid, stride, strict=True))
    sequence = (row % stride[0])[:, None] * stride[1] + column % stride[1]
    return sequence * (grid[0] * grid[1]) + (row // stride[0])[:, None] * grid[1] + column // stride[1]


def tokens_to_map(tokens: Tensor, token_indices: Tensor) -> Tensor:
    """Return tokens (B * W, N, ...) as a map (B, rows, columns, ...)."""
    windows = window_count(token_indices, tokens.shape[1], tokens.shape[0])
    return tokens.unflatten(0, (-1, windows)).flatten(1, 2)[:, token_indices]


def normalized_coordinates(token_indices: Tensor, tokens: int) -> Tensor:
    """Return (row, column) of each token as fractions of the map's sides, (W, N, 2).

    Tokens that are not on the map have NaN.
    """
    rows, columns = token_indices.shape
    windows = int(token_indices.max()) // tokens + 1
    found = torch.full((windows * tokens, 2), math.nan, device=token_indices.device)
    positions = torch.cartesian_prod(torch.arange(rows) / rows, torch.arange(columns) / columns)
    found[token_indices.flatten()] = positions.to(token_indices.device)
    return found.view(windows, tokens, 2)


def attention_map_for_query(weights: Tensor, token_indices: Tensor, query: tuple[int, int]) -> Tensor:
    """Return the attention map of the token at `query` (row, column), (B, H, rows, columns).

    `weights` are (B * W, H, N, N). The map is 0 outside the token's window.

    Raises:
        UsageError: `query` is not on the map, or queries and keys are not the same tokens.
    """
    row, column = check_position(query, *token_indices.shape)
    windows, tokens = _square(weights, token_indices)
    window, slot = divmod(int(token_indices[row, column]), tokens)
    by_image = weights.unflatten(0, (-1, windows))
    on_map = by_image.new_zeros(*by_image.shape[:1], by_image.shape[2], windows, tokens)
    on_map[:, :, window] = by_image[:, window, :, slot]
    return on_map.flatten(2)[..., token_indices]


def full_attention_map(weights: Tensor, token_indices: Tensor) -> Tensor:
    """Return the attention map of the whole image, (B, H, rows * columns, rows * columns).

    `weights` are (B * W, H, N, N). The result is 0 between windows. It has (rows * columns)^2 numbers per head: 39 MB in
    float32 for 56 x 56 tokens.
    """
    windows, tokens = _square(weights, token_indices)
    window, slot = token_indices.flatten() // tokens, token_indices.flatten() % tokens
    by_image = weights.unflatten(0, (-1, windows)).transpose(1, 2)
    rows = by_image[:, :, window, slot]  # (B, H, positions, N): the row of each position within its own window
    dense = rows[..., slot]
    return dense.mul_(window[:, None] == window[None, :]) if windows > 1 else dense


def filter_map_for_query(filters: Tensor, query: tuple[int, int]) -> Tensor:
    """Return the filter of the position `query` on the map, (B, H, rows, columns).

    `filters` are (B, H, K, rows, columns) with K = k x k offsets, row-major as in the local operation. Weights of
    neighbors outside the map are left out.
    """
    rows, columns = filters.shape[-2:]
    row, column = check_position(query, rows, columns)
    size = _kernel_size(filters)
    padded = filters.new_zeros(*filters.shape[:2], rows + size - 1, columns + size - 1)
    padded[..., row : row + size, column : column + size] = filters[..., row, column].unflatten(-1, (size, size))
    radius = size // 2
    return padded[..., radius : radius + rows, radius : radius + columns]


def filters_to_attention_map(filters: Tensor) -> Tensor:
    """Return filters as an attention map, (B, H, rows * columns, rows * columns).

    Filters are (B, H, K, rows, columns); the map is 0 outside of neighborhoods.
    """
    rows, columns = filters.shape[-2:]
    size = _kernel_size(filters)
    row, column = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).unbind(1)
    dense = filters.new_zeros(*filters.shape[:2], rows * columns, rows * columns)
    for offset in range(size**2):
        key_row, key_column = row + offset // size - size // 2, column + offset % size - size // 2
        inside = ((key_row >= 0) & (key_row < rows) & (key_column >= 0) & (key_column < columns)).nonzero().squeeze(1)
        dense[..., inside, (key_row * columns + key_column)[inside]] = filters[:, :, offset].flatten(2)[..., inside]
    return dense


def _kernel_size(filters: Tensor) -> int:
    """Return k of filters with K = k * k offsets."""
    size = math.isqrt(filters.shape[2])
    if size**2 != filters.shape[2] or size % 2 == 0:
        raise UsageError(f"{filters.shape[2]} offsets are not a neighborhood of k x k positions with odd k")
    return size


def check_position(query: tuple[int, int], rows: int, columns: int) -> tuple[int, int]:
    """Return `query` (row, column) if it is on the map.

    Raises:
        UsageError: `query` is not on the map.
    """
    row, column = query
    if not (0 <= row < rows and 0 <= column < columns):
        raise UsageError(f"position ({row}, {column}) is outside the map of {rows} x {columns}")
    return row, column


def check_square(weights: Tensor) -> None:
    """Check that `weights` are attention maps whose queries and keys are the same tokens.

    Raises:
        UsageError: `weights` has another shape, or queries and keys are different tokens.
    """
    if weights.ndim != 4 or weights.shape[-1] != weights.shape[-2]:
        raise UsageError(
            f"expected an attention map (B, H, N, N) whose queries and keys are the same tokens, got {tuple(weights.shape)}"
        )


def _square(weights: Tensor, token_indices: Tensor) -> tuple[int, int]:
    """Return (W, N) of maps whose queries and keys are the same tokens."""
    check_square(weights)
    return window_count(token_indices, weights.shape[-1], weights.shape[0]), weights.shape[-1]


def window_count(token_indices: Tensor, tokens: int, sequences: int) -> int:
    """Return the number of windows of one image.

    Raises:
        UsageError: `sequences` is not a multiple of the number of windows.
    """
    windows = int(token_indices.max()) // tokens + 1
    if sequences % windows:
        raise UsageError(
            f"{sequences} sequences of {tokens} tokens do not fit a map of {tuple(token_indices.shape)} with {windows} "
            "windows per image"
        )
    return windows
