"""The paper's measures of attention maps and of learned scales (Sec. 2.1, Figs. 3, 5, 6), as plain functions."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from attngraft.errors import UsageError


def without_prefix(weights: Tensor, prefix: int = 1) -> Tensor:
    """The attention map (..., N, N) among the tokens after the first `prefix`, rows summing to 1 again (Fig. 3a)."""
    spatial = weights[..., prefix:, prefix:]
    return spatial / spatial.sum(-1, keepdim=True)


def entropy(weights: Tensor) -> Tensor:
    """Mean over all rows of -sum_j a_ij ln a_ij, in nats; at most ln N (Figs. 3a, 5a). `weights` is (..., Nq, Nk)."""
    return torch.special.entr(weights).sum(-1).mean()


def relative_distance(
    weights: Tensor, grid: tuple[int, int], *, normalize: Literal["pair_mean", "per_query"] = "per_query"
) -> Tensor:
    """How far attention looks: a_ij |p_i - p_j|_1 over pairs i != j, with p = (row / rows, column / columns) (Fig. 5b).

    Args:
        weights: (..., N, N), spatial tokens only, row by row.
        grid: (rows, columns), N = rows * columns.
        normalize: "pair_mean" is the mean over the N (N - 1) ordered pairs, "per_query" is N - 1 times that: the expected
            distance of one query.

    Raises:
        UsageError: the map is not that of the grid (drop class and distillation tokens first), or has a single token.
    """
    rows, columns = grid
    tokens = rows * columns
    if weights.shape[-2:] != (tokens, tokens) or tokens < 2:
        raise UsageError(
            f"an attention map of {weights.shape[-2]} x {weights.shape[-1]} does not fit a grid of {rows} x {columns} "
            f"tokens; drop prefix tokens first (without_prefix)"
        )
    row, column = torch.meshgrid(
        torch.arange(rows, device=weights.device, dtype=weights.dtype) / rows,
        torch.arange(columns, device=weights.device, dtype=weights.dtype) / columns,
        indexing="ij",
    )
    place = torch.stack([row.flatten(), column.flatten()], dim=-1)
    per_query = (weights * torch.cdist(place, place, p=1)).sum(-1).mean()
    return per_query if normalize == "per_query" else per_query / (tokens - 1)


def steepness(scores: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Nuclear norm of the softmax's Jacobian, per row: t sum_j (a_j - a_j^2), a = softmax(t s) (Sec. 2.1).

    The Jacobian is symmetric and positive semi-definite, so this is its trace; it is largest, t (1 - 1/N), for uniform a.
    `scores` is (..., N), the result (...).
    """
    weights = torch.softmax(temperature * scores, dim=-1)
    return temperature * (weights - weights.square()).sum(-1)


class ScaleStatistics(NamedTuple):
    """Of one layer's Lambda."""

    ratio: Tensor  #: |10% quantile| / |90% quantile|
    mean: Tensor


def scale_statistics(scale: Tensor) -> ScaleStatistics:
    """The two curves of Fig. 6 for a Lambda of shape (C,); quantiles by linear interpolation."""
    low, high = torch.quantile(scale, torch.tensor([0.1, 0.9], dtype=scale.dtype, device=scale.device))
    return ScaleStatistics(low.abs() / high.abs(), scale.mean())
