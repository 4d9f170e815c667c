"""Reductions of attention maps to running means over images, with one map in memory at a time."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from attngraft.errors import RecordError
from attngraft.recording.attention_maps import normalized_coordinates, tokens_to_map
from attngraft.recording.measures import (
    entropy,
    relative_distance,
    steepness_of_weights,
    windowed_distance,
    without_prefix,
)


class TokenLayout(NamedTuple):
    """Layout of a map's tokens on the image; unknown fields are None."""

    prefix: int = 0  #: number of prefix tokens
    grid: tuple[int, int] | None = None  #: (rows, columns) of the other tokens; None: unknown
    token_indices: Tensor | None = None  #: (rows, columns), as in `attention_maps`; None: not reported by the host

    @property
    def map_size(self) -> tuple[int, int] | None:
        """(rows, columns) of the image's map; None: unknown."""
        return self.grid if self.token_indices is None else (self.token_indices.shape[0], self.token_indices.shape[1])


def _windowed(weights: Tensor, layout: TokenLayout) -> bool:
    """Return whether `weights` are maps of windows and the host reported their token indices."""
    if layout.token_indices is None or layout.prefix or weights.ndim != 4 or weights.shape[-1] != weights.shape[-2]:
        return False
    return len(weights) % (int(layout.token_indices.max()) // weights.shape[-1] + 1) == 0


def _by_window(weights: Tensor, layout: TokenLayout) -> tuple[Tensor, Tensor]:
    """Return the maps by window (B, W, H, N, N), and the token coordinates (W, N, 2)."""
    if layout.token_indices is None:
        raise RecordError("its host does not report token positions")
    coordinates = normalized_coordinates(layout.token_indices, weights.shape[-1])
    return weights.unflatten(0, (-1, len(coordinates))), coordinates.to(weights.device)


def _rows(values: Tensor, weights: Tensor, layout: TokenLayout) -> Tensor:
    """Return the values by row, (B, H, Nq), or for windows by map position, (B, H, rows * columns)."""
    if layout.token_indices is None or not _windowed(weights, layout):
        return values
    return tokens_to_map(values.movedim(1, 2), layout.token_indices.to(values.device)).flatten(1, 2).movedim(1, 2)


def _among_patches(weights: Tensor, layout: TokenLayout) -> Tensor:
    """Return the attention map among the tokens on the image, rows summing to 1.

    The columns of other tokens are 0 or removed.
    """
    if weights.shape[-1] != weights.shape[-2]:
        raise RecordError(
            f"the queries and keys of its maps ({weights.shape[-2]} x {weights.shape[-1]}) are different tokens, so "
            "patch_entropy is undefined"
        )
    if weights.shape[-1] <= layout.prefix:
        raise RecordError(f"its maps contain only the {layout.prefix} prefix tokens")
    if _windowed(weights, layout):
        windows, coordinates = _by_window(weights, layout)
        on_map = coordinates[..., 0].isfinite()[:, None, None]
        if bool(on_map.all()):
            return weights
        among = windows * on_map
        total = among.sum(-1, keepdim=True).clamp_min(torch.finfo(among.dtype).tiny)  # 0: all weight is on the padding
        return (among / total).flatten(0, 1)
    return without_prefix(weights, layout.prefix)


def _patch_ceiling(weights: Tensor, layout: TokenLayout) -> Tensor:
    spatial = weights.shape[-1] - layout.prefix
    if weights.shape[-1] != weights.shape[-2] or spatial < 1:
        raise RecordError("its maps have no patches as both queries and keys, so patch_ceiling is undefined")
    if _windowed(weights, layout):
        windows, coordinates = _by_window(weights, layout)
        most = coordinates[..., 0].isfinite().sum(-1).clamp_min(1).float().log()
        return _rows(most[:, None, None].expand(windows.shape[:-1]).flatten(0, 1), weights, layout)
    return torch.full((*weights.shape[:-2], spatial), math.log(spatial))


def _distance(weights: Tensor, layout: TokenLayout) -> Tensor:
    if _windowed(weights, layout):
        return _rows(windowed_distance(*_by_window(weights, layout)).flatten(0, 1), weights, layout)
    square = weights.shape[-1] == weights.shape[-2]
    spatial = without_prefix(weights, layout.prefix) if layout.prefix and square else weights
    tokens = 0 if layout.grid is None else layout.grid[0] * layout.grid[1]
    if layout.grid is None or tokens < 2 or spatial.shape[-2:] != (tokens, tokens):
        raise RecordError(
            f"distance requires tokens on a grid: its maps are {weights.shape[-2]} x {weights.shape[-1]} tokens, its host "
            f"declares {layout.prefix} prefix tokens and the grid {layout.grid}"
        )
    return relative_distance(spatial, layout.grid)


def _evenness(weights: Tensor, layout: TokenLayout) -> Tensor:
    keys = weights.shape[-1]
    if keys < 2:
        raise RecordError("its rows have a single key, for which evenness is undefined")
    return _rows(steepness_of_weights(weights) / (1 - 1 / keys), weights, layout)


#: name -> function of maps (B, H, Nq, Nk) that returns values by image; their mean over images is kept
REDUCTIONS: Mapping[str, Callable[[Tensor, TokenLayout], Tensor]] = {
    "mean": lambda weights, layout: weights,
    "entropy": lambda weights, layout: _rows(entropy(weights), weights, layout),
    "patch_entropy": lambda weights, layout: _rows(entropy(_among_patches(weights, layout)), weights, layout),
    "distance": _distance,
    "ceiling": lambda weights, layout: _rows(
        torch.full(weights.shape[:-1], math.log(weights.shape[-1])), weights, layout
    ),
    "patch_ceiling": _patch_ceiling,
    "steepness": lambda weights, layout: _rows(steepness_of_weights(weights), weights, layout),
    "evenness": _evenness,
}


class RunningMean:
    """Mean over the first axis of all added tensors, in float32 or higher precision."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor | None = None
        self._map_size: tuple[int, int] | None = None

    def add(self, values: Tensor, map_size: tuple[int, int] | None = None) -> None:
        """Add the values of some images.

        Args:
            values: (B, ...), one entry per image.
            map_size: (rows, columns) of the images' map; None: unknown.

        Raises:
            RecordError: the shape or the map size differs from that of earlier values.
        """
        mean = values.mean(0, dtype=torch.promote_types(values.dtype, torch.float32))
        if self.mean is None:
            self.count, self.mean, self._map_size = len(values), mean, map_size
            return
        remedy = "reduce inputs of one size at a time (`clear` starts over)"
        if mean.shape != self.mean.shape:
            raise RecordError(f"its maps have shape {tuple(mean.shape)}, previously {tuple(self.mean.shape)}; {remedy}")
        if map_size != self._map_size:
            now, before = (
                f"a map of {size[0]} x {size[1]}" if size else "no map" for size in (map_size, self._map_size)
            )
            raise RecordError(f"its tokens are on {now}, previously on {before}; {remedy}")
        self.count += len(values)
        self.mean += (mean - self.mean) * (len(values) / self.count)
