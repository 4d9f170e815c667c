"""What is kept of attention maps where the maps are too many: running means over images, one map alive at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from attngraft.errors import RecordError
from attngraft.recording.attention_maps import coordinates, put_back
from attngraft.recording.measures import entropy, windowed_distance, relative_distance, steepness_of_weights, without_prefix


class Around(NamedTuple):
    """What a reduction may know of the tokens of a map."""

    prefix: int = 0  #: leading tokens that stand on no grid
    grid: tuple[int, int] | None = None  #: (rows, columns) of the others; None: not known
    places: Tensor | None = None  #: (rows, columns), which token of the windows stands at each place; None: not said

    @property
    def map(self) -> tuple[int, int] | None:
        """(rows, columns) of the map of the image; None: not known."""
        return self.grid if self.places is None else (self.places.shape[0], self.places.shape[1])


def _placed(weights: Tensor, around: Around) -> bool:
    """Whether the host says where each token of these windows stands."""
    if around.places is None or around.prefix or weights.ndim != 4 or weights.shape[-1] != weights.shape[-2]:
        return False
    tokens = weights.shape[-1]
    return len(weights) % (int(around.places.max()) // tokens + 1) == 0


def _by_windows(weights: Tensor, around: Around) -> tuple[Tensor, Tensor]:
    """Maps (B, W, H, N, N) of placed windows, and where their tokens stand, (W, N, 2)."""
    if around.places is None:
        raise RecordError("its host does not say where its tokens stand")
    at = coordinates(around.places, weights.shape[-1])
    return weights.unflatten(0, (-1, len(at))), at.to(weights.device)


def _rows(values: Tensor, weights: Tensor, around: Around) -> Tensor:
    """Numbers by row (B, H, Nq), those of placed windows by place of the map, (B, H, rows * columns)."""
    if around.places is None or not _placed(weights, around):
        return values
    return put_back(values.movedim(1, 2), around.places.to(values.device)).flatten(1, 2).movedim(1, 2)


def _among_patches(weights: Tensor, around: Around) -> Tensor:
    """The map among tokens that stand on the map, rows summing to 1 again; columns of others are 0 or left out."""
    if weights.shape[-1] != weights.shape[-2]:
        raise RecordError(
            f"the queries of its maps of {weights.shape[-2]} x {weights.shape[-1]} are not its keys, so that nothing is "
            "'among patches'"
        )
    if weights.shape[-1] <= around.prefix:
        raise RecordError(f"its maps have no tokens but {around.prefix} leading ones")
    if _placed(weights, around):
        windows, at = _by_windows(weights, around)
        stands = at[..., 0].isfinite()[:, None, None]
        if bool(stands.all()):
            return weights
        among = windows * stands
        total = among.sum(-1, keepdim=True).clamp_min(torch.finfo(among.dtype).tiny)  # 0: it looks at the filling alone
        return (among / total).flatten(0, 1)
    return without_prefix(weights, around.prefix)


def _patch_ceiling(weights: Tensor, around: Around) -> Tensor:
    spatial = weights.shape[-1] - around.prefix
    if weights.shape[-1] != weights.shape[-2] or spatial < 1:
        raise RecordError("it has no maps among patches")
    if _placed(weights, around):
        windows, at = _by_windows(weights, around)
        most = at[..., 0].isfinite().sum(-1).clamp_min(1).float().log()
        return _rows(most[:, None, None].expand(windows.shape[:-1]).flatten(0, 1), weights, around)
    return torch.full((*weights.shape[:-2], spatial), math.log(spatial))


def _distance(weights: Tensor, around: Around) -> Tensor:
    if _placed(weights, around):
        windows, at = _by_windows(weights, around)
        return _rows(windowed_distance(windows, at).flatten(0, 1), weights, around)
    spatial = (
        without_prefix(weights, around.prefix) if around.prefix and weights.shape[-1] == weights.shape[-2] else weights
    )
    tokens = 0 if around.grid is None else around.grid[0] * around.grid[1]
    if around.grid is None or tokens < 2 or spatial.shape[-2:] != (tokens, tokens):
        raise RecordError(
            f"its maps of {weights.shape[-2]} x {weights.shape[-1]} tokens stand on no grid that its host names "
            f"({around.prefix} leading tokens, grid {around.grid}), so that they have no distances"
        )
    return relative_distance(spatial, around.grid)


def _evenness(weights: Tensor, around: Around) -> Tensor:
    keys = weights.shape[-1]
    if keys < 2:
        raise RecordError("its rows have one key, which gets all: a softmax of one number has no steepness")
    return _rows(steepness_of_weights(weights) / (1 - 1 / keys), weights, around)


#: name -> what becomes of maps (B, H, Nq, Nk), by image; their mean over all images is kept
REDUCTIONS: Mapping[str, Callable[[Tensor, Around], Tensor]] = {
    "mean": lambda weights, around: weights,
    "entropy": lambda weights, around: _rows(entropy(weights), weights, around),
    "patch_entropy": lambda weights, around: _rows(entropy(_among_patches(weights, around)), weights, around),
    "distance": _distance,
    "ceiling": lambda weights, around: _rows(
        torch.full(weights.shape[:-1], math.log(weights.shape[-1])), weights, around
    ),
    "patch_ceiling": _patch_ceiling,
    "steepness": lambda weights, around: _rows(steepness_of_weights(weights), weights, around),
    "evenness": _evenness,
}


class RunningMean:
    """The mean over the first axis of everything that was added, in float32 or better."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor | None = None
        self._size: tuple[int, int] | None = None

    def add(self, values: Tensor, size: tuple[int, int] | None = None) -> None:
        """
        Args:
            values: of images, (B, ...).
            size: (rows, columns) of the map on which their tokens stand; None: not known.

        Raises:
            RecordError: the shape or the map is another one than before.
        """
        found = values.mean(0, dtype=torch.promote_types(values.dtype, torch.float32))
        if self.mean is None:
            self.count, self.mean, self._size = len(values), found, size
            return
        one = "reduce inputs of one size at a time (`clear` begins anew)"
        if found.shape != self.mean.shape:
            raise RecordError(
                f"its maps have {tuple(found.shape)} numbers, and had {tuple(self.mean.shape)} before; {one}"
            )
        if size != self._size:
            now, before = (f"a map of {each[0]} x {each[1]}" if each else "no map" for each in (size, self._size))
            raise RecordError(f"its tokens stand on {now}, and stood on {before} before; {one}")
        self.count += len(values)
        self.mean += (found - self.mean) * (len(values) / self.count)
