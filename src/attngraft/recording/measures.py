"""Measures of attention maps and of learned scales, as plain functions (CB, Sec. 2.1, Figs. 3, 5, 6)."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from attngraft.errors import UsageError


def without_prefix(weights: Tensor, prefix: int = 1) -> Tensor:
    """Return the attention map (..., N, N) without prefix tokens, rows summing to 1 (Fig. 3a).

    A row whose weight is all on the prefix becomes 0.
    """
    spatial = weights[..., prefix:, prefix:]
    total = spatial.sum(-1, keepdim=True)
    return spatial / total.masked_fill(total == 0, 1)  # not clamped: sums can be negative in talking-heads attention


def entropy(weights: Tensor) -> Tensor:
    """Return the entropy of each row i, -sum_j a_ij ln a_ij, in nats: (..., Nq, Nk) to (..., Nq).

    It is at most ln Nk. The paper's curves are its mean over images, heads and rows (Fig. 3a), or over the class token's
    rows (Fig. 5a).
    """
    return torch.special.entr(weights).sum(-1)


def relative_distance(
    weights: Tensor, grid: tuple[int, int], *, normalize: Literal["pair_mean", "per_query"] = "per_query"
) -> Tensor:
    """Return the attention distance of each query, (..., N, N) to (..., N) (Fig. 5b).

        sum_j a_ij |p_i - p_j|_1, with p = (row / rows, column / columns)

    The paper's curve is its mean over images, heads and queries.

    Args:
        weights: (..., N, N), spatial tokens only, row by row.
        grid: (rows, columns) of the map, N = rows * columns.
        normalize: "per_query" is the expected distance of a query; "pair_mean" divides this by N - 1, so that the mean over
            queries is the mean of a_ij |p_i - p_j|_1 over the N (N - 1) ordered pairs.

    Raises:
        UsageError: the map does not fit the grid (drop prefix tokens first), or the grid has a single token.
    """
    rows, columns = grid
    tokens = rows * columns
    if weights.shape[-2:] != (tokens, tokens) or tokens < 2:
        raise UsageError(
            f"an attention map of {weights.shape[-2]} x {weights.shape[-1]} does not fit a grid of {rows} x {columns} "
            "tokens; drop prefix tokens first (without_prefix)"
        )
    exact = torch.promote_types(weights.dtype, torch.float32)  # cdist has no half precision on the CPU
    row, column = (torch.arange(side, device=weights.device, dtype=exact) / side for side in grid)
    positions = torch.cartesian_prod(row, column)
    distances = torch.cdist(positions, positions, p=1).to(weights.dtype)
    by_query = torch.einsum("...ij,ij->...i", weights, distances)  # einsum needs no second map in memory
    return by_query if normalize == "per_query" else by_query / (tokens - 1)


def windowed_distance(weights: Tensor, coordinates: Tensor) -> Tensor:
    """Return the attention distance of each query within its window, (..., W, H, N, N) to (..., W, H, N).

    Rows are normalized to sum to 1 over the tokens on the map. The distance is 0 for padding tokens and for tokens that
    attend only to padding tokens.

    Args:
        weights: maps of W windows.
        coordinates: (W, N, 2), (row, column) of each token as fractions of the map's sides; NaN for padding tokens.
    """
    on_map = coordinates[..., 0].isfinite().to(weights.dtype)
    finite = coordinates.nan_to_num(0.0)
    distances = torch.cdist(finite, finite, p=1).to(weights.dtype) * on_map[:, None]
    total = torch.einsum("...whij,wj->...whi", weights, on_map).clamp_min(torch.finfo(weights.dtype).tiny)
    return torch.einsum("...whij,wij->...whi", weights, distances) / total * on_map[:, None]


def steepness_of_weights(weights: Tensor) -> Tensor:
    """Return the `steepness` of softmax outputs at temperature 1, sum_j (a_j - a_j^2): (..., N) to (...)."""
    return (weights - weights.square()).sum(-1)


def steepness(scores: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Return the nuclear norm of the softmax's Jacobian per row (Sec. 2.1).

    It is t sum_j (a_j - a_j^2) with a = softmax(t s). The Jacobian is symmetric and positive semi-definite, so its
    nuclear norm is its trace. The maximum, t (1 - 1/N), is reached for uniform a.
    `scores` is (..., N), the result (...).
    """
    return temperature * steepness_of_weights(torch.softmax(temperature * scores, dim=-1))


class ScaleStatistics(NamedTuple):
    """Statistics of one layer's Lambda."""

    ratio: Tensor  #: |10% quantile| / |90% quantile|
    mean: Tensor


def scale_statistics(scale: Tensor) -> ScaleStatistics:
    """Return the values of both curves of Fig. 6 for a Lambda of shape (C,).

    Quantiles are interpolated linearly.
    """
    low, high = torch.quantile(scale, torch.tensor([0.1, 0.9], dtype=scale.dtype, device=scale.device))
    return ScaleStatistics(low.abs() / high.abs(), scale.mean())
