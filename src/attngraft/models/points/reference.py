"""Operations on point clouds by their definitions, which the fast forms in `operations` are held to.

Letters: B clouds, N points, S anchors or queries, k neighbors, C channels. Distances are squared Euclidean, computed in
float32 at least, as (x^2 + y^2) + z^2.
"""

import torch
from torch import Tensor

#: largest squared norm of points that farthest point sampling skips, as in PointMLP's kernel
NEAR_ORIGIN = 1e-3
#: number of neighbors for interpolation of a point's features
INTERPOLATED = 3


def squared_distances(queries: Tensor, points: Tensor) -> Tensor:
    """Return the distances (B, S, N) of queries (B, S, 3) to points (B, N, 3)."""
    x, y, z = (queries.unsqueeze(2) - points.unsqueeze(1)).square().unbind(-1)
    return x + y + z


@torch.no_grad()
def farthest_points(points: Tensor, count: int) -> Tensor:
    """Return the indices (B, count) of farthest point sampling of points (B, N, 3).

    The first is point 0; each further point maximizes the distance to the nearest chosen point. In a tie, the point with the
    smallest index is chosen. Points near the origin (squared norm up to `NEAR_ORIGIN`) are never chosen, except point 0,
    since clouds are often padded with zeros. If no new point is left, points repeat.
    """
    points = widened(points)
    rows = torch.arange(len(points), device=points.device)
    distance = torch.where(points.square().sum(dim=-1) > NEAR_ORIGIN, torch.inf, -1.0)  # -1 is never the largest
    chosen = [torch.zeros_like(rows)]
    for _ in range(count - 1):
        last = points[rows, chosen[-1]].unsqueeze(1)
        distance = torch.minimum(distance, squared_distances(last, points).squeeze(1))
        chosen.append(distance.argmax(dim=1))
    return torch.stack(chosen, dim=1)


@torch.no_grad()
def knn(queries: Tensor, points: Tensor, count: int) -> Tensor:
    """Return the indices (B, S, count) of the points (B, N, 3) nearest to queries (B, S, 3), nearest first.

    Points at the same distance are ordered by index.
    """
    distances = squared_distances(widened(queries), widened(points))
    return distances.sort(dim=-1, stable=True).indices[..., :count]


def group(values: Tensor, index: Tensor) -> Tensor:
    """Gather values (B, N, C) at an index (B, ...): (B, ..., C)."""
    rows = torch.arange(len(values), device=values.device).view(-1, *[1] * (index.ndim - 1))
    return values[rows, index]


def three_interpolate(points: Tensor, known_points: Tensor, known: Tensor) -> Tensor:
    """Interpolate features (B, S, C) of known points (B, S, 3) at points (B, N, 3): (B, N, C).

        y_i = sum_j w_ij known_j,    w_ij = 1 / (|p_i - q_j|^2 + 1e-8), over the 3 nearest j, divided by their sum

    With fewer than three known points, all of them are used.
    """
    near = knn(points, known_points, min(INTERPOLATED, known_points.shape[1]))
    return weighted(points, known_points, known, near)


def weighted(points: Tensor, known_points: Tensor, known: Tensor, near: Tensor) -> Tensor:
    """Return the interpolation of `three_interpolate` from given neighbors (B, N, 3)."""
    away = widened(points).unsqueeze(2) - group(widened(known_points), near)
    weight = 1 / (away.square().sum(dim=-1) + 1e-8)
    weight = weight / weight.sum(dim=-1, keepdim=True)
    return (weight.to(known.dtype).unsqueeze(-1) * group(known, near)).sum(dim=2)


def widened(points: Tensor) -> Tensor:
    """Return points in float32 at least."""
    return points.to(torch.promote_types(points.dtype, torch.float32))
