"""Operations on point clouds: farthest point sampling, nearest neighbors, gathering, interpolation.

    anchors = farthest_points(points, 512)          (B, 512) indices
    near    = knn(group(points, anchors), points, 24)    (B, 512, 24) indices, nearest first
    values  = group(features, near)                 (B, 512, 24, C)
    back    = three_interpolate(points, group(points, anchors), coarse)

Results are those of `reference`, index by index. Sampling keeps the coordinates as three planes and writes into buffers.
Neighbors are found on the CPU by scipy's k-d tree, elsewhere from all distances; points at the same distance are ordered by
index in both.
"""

import torch
from torch import Tensor

from attngraft.models.points.reference import INTERPOLATED, NEAR_ORIGIN, group, weighted, widened

__all__ = ["ball_query", "farthest_points", "group", "knn", "three_interpolate"]

#: number of points above which a k-d tree is faster than all distances
TREE_POINTS = 128
#: number of distances that are computed at once
DISTANCES = 2**24
#: relative difference of squared distances that rounding in float32 may reverse
ROUNDING = 1e-6


@torch.no_grad()
def farthest_points(points: Tensor, count: int) -> Tensor:
    """Return the indices (B, count) of farthest point sampling of points (B, N, 3).

    The first is point 0; each further point maximizes the distance to the nearest chosen point. In a tie, the point with the
    smallest index is chosen. Points near the origin (squared norm up to 1e-3) are never chosen, except point 0, since clouds
    are often padded with zeros. If no new point is left, points repeat.

    Raises:
        ValueError: `count` is below 1 or above N, or `points` has another shape.
    """
    _check(points, count, "count")
    planes = widened(points).movedim(-1, 0).contiguous()  # (3, B, N)
    nearest = torch.where(planes.square().sum(dim=0) > NEAR_ORIGIN, torch.inf, -1.0).to(planes.dtype)
    chosen = torch.zeros(len(points), count, dtype=torch.int64, device=points.device)
    offset = torch.empty_like(planes)
    total, y, z = offset
    for step in range(1, count):
        last = planes.gather(2, chosen[:, step - 1 : step].expand(3, -1, -1))
        torch.sub(planes, last, out=offset).square_()
        torch.minimum(nearest, total.add_(y).add_(z), out=nearest)
        torch.argmax(nearest, dim=1, out=chosen[:, step])
    return chosen


@torch.no_grad()
def knn(queries: Tensor, points: Tensor, count: int) -> Tensor:
    """Return the indices (B, S, count) of the points (B, N, 3) nearest to queries (B, S, 3), nearest first.

    Points at the same distance are ordered by index.

    Raises:
        ValueError: `count` is below 1 or above N, or a shape does not fit.
    """
    _check(points, count, "count")
    queries, points = widened(queries), widened(points)
    if points.device.type == "cpu" and points.shape[1] >= TREE_POINTS and count < points.shape[1]:
        return _by_trees(queries, points, count)
    clouds = max(1, DISTANCES // (queries.shape[1] * points.shape[1]))
    parts = zip(queries.split(clouds), points.split(clouds), strict=True)
    return torch.cat([_by_distances(*part, count) for part in parts])


@torch.no_grad()
def ball_query(queries: Tensor, points: Tensor, radius: float, count: int) -> Tensor:
    """Return the indices (B, S, count) of the first points (B, N, 3) at most `radius` from queries (B, S, 3), in order.

    If fewer are near, the first one is repeated; if none is, point 0.

    Raises:
        ValueError: `count` is below 1 or above N, or a shape does not fit.
    """
    _check(points, count, "count")
    number = points.shape[1]
    index = torch.arange(number, device=points.device)
    far = _squared(widened(queries), widened(points)) > radius**2
    first = torch.where(far, number, index).topk(count, dim=-1, largest=False).values
    return torch.where(first == number, first[..., :1] % number, first)


def three_interpolate(points: Tensor, known_points: Tensor, known: Tensor) -> Tensor:
    """Interpolate features (B, S, C) of known points (B, S, 3) at points (B, N, 3): (B, N, C).

        y_i = sum_j w_ij known_j,    w_ij = 1 / (|p_i - q_j|^2 + 1e-8), over the 3 nearest j, divided by their sum

    With fewer than three known points, all of them are used. Source: PointNet++ (Qi et al., 2017), Eq. 2.
    """
    near = knn(points, known_points, min(INTERPOLATED, known_points.shape[1]))
    return weighted(points, known_points, known, near)


def _by_distances(queries: Tensor, points: Tensor, count: int) -> Tensor:
    distances = _squared(queries, points)
    if distances.dtype == torch.float32:
        # non-negative floats are ordered as their bits: one number holds the distance and, for ties, the index
        index = torch.arange(points.shape[1], device=points.device)
        keys = distances.view(torch.int32).to(torch.int64) << 32 | index
        return keys.topk(count, largest=False).values & 0xFFFFFFFF
    return distances.sort(dim=-1, stable=True).indices[..., :count]


def _squared(queries: Tensor, points: Tensor) -> Tensor:
    """Return the distances (B, S, N), in the order of operations of the reference."""
    x, y, z = (queries[..., axis].unsqueeze(2).sub(points[..., axis].unsqueeze(1)).square_() for axis in range(3))
    return x.add_(y).add_(z)


def _by_trees(queries: Tensor, points: Tensor, count: int) -> Tensor:
    """Find neighbors by k-d trees, and again by all distances for queries at which rounding may change their order."""
    from scipy.spatial import cKDTree  # slow to import

    found = []
    for asked, stored in zip(queries, points, strict=True):
        away, index = cKDTree(stored.double().numpy()).query(asked.double().numpy(), count + 1)
        near, squared = torch.from_numpy(index[:, :count]), torch.from_numpy(away).square_()
        unclear = (squared[:, 1:] <= squared[:, :-1] * (1 + ROUNDING)).any(dim=1)
        if unclear.any():
            near[unclear] = _by_distances(asked[unclear].unsqueeze(0), stored.unsqueeze(0), count)[0]
        found.append(near)
    return torch.stack(found)


def _check(points: Tensor, count: int, name: str) -> None:
    if points.ndim != 3 or points.shape[-1] != 3:
        raise ValueError(f"points must be (B, N, 3), not {tuple(points.shape)}")
    if not 1 <= count <= points.shape[1]:
        raise ValueError(f"{name}={count} must be from 1 to the clouds' {points.shape[1]} points")
