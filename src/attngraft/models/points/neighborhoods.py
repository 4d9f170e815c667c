"""Neighborhoods of points, and a linear layer on grouped features that is computed on points instead of neighbors.

The layer after an affine group is linear in the neighbor r_j and in the center c_s:

    W [alpha * (r_j - c_s) / (std + 1e-5) + beta, x_s] + b  =  u_j + v_s
    u_j = A r_j,    v_s = W2 x_s - A c_s + W1 beta + b,    A = W1 alpha / (std + 1e-5),    W = [W1, W2]

so it is multiplied on N points, not on S k neighbors. `std` and the statistics of batch norm follow from sums: how often a
point is a neighbor, and the sum of each group. A maximum over neighbors of `gain * (u_j + v_s)` is the maximum of
`gain * u_j`, whatever the signs. Equal to the plain form up to rounding; where several neighbors share the maximum, the
gradient goes to one of them, not to all in equal parts.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.errors import UsageError
from attngraft.models.points.operations import farthest_points, group, knn


@dataclass(frozen=True)
class Neighborhoods:
    """Neighbors of anchors, found once per cloud and shared by layers.

    Args:
        near: indices (B, S, k) of the neighbors.
        points: N.
        anchors: indices (B, S) of the anchors; None: every point is an anchor.
    """

    near: Tensor
    points: int
    anchors: Tensor | None = None

    def at_anchors(self, values: Tensor) -> Tensor:
        """Return the anchors' rows (B, S, C) of values (B, N, C)."""
        return values if self.anchors is None else group(values, self.anchors)

    def sums(self, values: Tensor) -> Tensor:
        """Return the sums (B, S, C) of values (B, N, C) over each neighborhood."""
        return self._reduced(values, "sum")

    def maxima(self, values: Tensor) -> Tensor:
        """Return the maxima (B, S, C) of values (B, N, C) over each neighborhood."""
        if torch.is_grad_enabled() and values.requires_grad:
            return self._reduced(values, "max")
        rows, columns = values.flatten(0, 1), self._rows()
        largest = rows.index_select(0, columns[:, 0])
        for column in columns.T[1:]:
            torch.maximum(largest, rows.index_select(0, column), out=largest)
        return largest.view(*self.near.shape[:2], -1)

    def counts(self, dtype: torch.dtype) -> Tensor:
        """Return how often each point is a neighbor (B, N, 1)."""
        near = self.near.flatten(1)
        counts = torch.zeros(len(near), self.points, dtype=dtype, device=near.device)
        return counts.scatter_add_(1, near, torch.ones_like(near, dtype=dtype)).unsqueeze(-1)

    def _rows(self) -> Tensor:
        first = torch.arange(len(self.near), device=self.near.device) * self.points
        return (self.near + first.view(-1, 1, 1)).flatten(0, 1)

    def _reduced(self, values: Tensor, mode: str) -> Tensor:
        found = F.embedding_bag(self._rows(), values.flatten(0, 1), mode=mode)
        return found.view(*self.near.shape[:2], -1)


def neighborhoods(points: Tensor, *, anchors: int | None, neighbors: int) -> Neighborhoods:
    """Find the `neighbors` nearest points of each of `anchors` farthest points; None: of every point.

    Raises:
        UsageError: the clouds (B, N, 3) have fewer points.
    """
    needed = max(neighbors, anchors or 1)
    if needed > points.shape[1]:
        raise UsageError(
            f"these clouds have {points.shape[1]} points, but {needed} are needed ({anchors or 'all'} anchors with "
            f"{neighbors} neighbors); use clouds with more points, or a model with fewer anchors and neighbors"
        )
    chosen = None if anchors is None else farthest_points(points, anchors)
    at = points if chosen is None else group(points, chosen)
    return Neighborhoods(knn(at, points, neighbors), points.shape[1], chosen)


def deviation(rows: Tensor, centers: Tensor, near: Neighborhoods) -> Tensor:
    """Return the unbiased deviation (B, 1, 1) of `rows_j - centers_s` over anchors, neighbors and channels."""
    shift = rows.mean(dim=1, keepdim=True)  # against cancellation
    rows, centers = rows - shift, centers - shift
    neighbors, counts = near.near.shape[-1], near.counts(rows.dtype)
    total = (counts * rows).sum(dim=(1, 2)) - neighbors * centers.sum(dim=(1, 2))
    squares = (counts * rows.square()).sum(dim=(1, 2)) + neighbors * centers.square().sum(dim=(1, 2))
    squares = squares - 2 * (centers * near.sums(rows)).sum(dim=(1, 2))
    number = near.near[0].numel() * rows.shape[-1]
    return ((squares - total.square() / number).clamp_min(0) / (number - 1)).sqrt().view(-1, 1, 1)


def normalized(u: Tensor, v: Tensor, near: Neighborhoods, norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    """Return `u` and `v` so that their sums are `norm(u_j + v_s)`, with the statistics of all neighbors.

    In training mode the running statistics are updated as by the norm itself.
    """
    mean, variance = norm.running_mean, norm.running_var
    if norm.training or mean is None or variance is None:
        neighbors, counts = near.near.shape[-1], near.counts(u.dtype)
        number = near.near.numel()
        mean_u = (counts * u).sum(dim=(0, 1)) / number
        mean_v = v.mean(dim=(0, 1))
        off_u, off_v = u - mean_u, v - mean_v  # against cancellation
        squares = (counts * off_u.square()).sum(dim=(0, 1)) + neighbors * off_v.square().sum(dim=(0, 1))
        squares = squares + 2 * (off_v * near.sums(off_u)).sum(dim=(0, 1))
        mean, variance = mean_u + mean_v, squares / number
        if norm.training:
            _update(norm, mean.detach(), variance.detach() * number / (number - 1))
    gain = (variance + norm.eps).rsqrt() * (1 if norm.weight is None else norm.weight)
    offset = (0 if norm.bias is None else norm.bias) - mean * gain
    return u * gain, v * gain + offset


@torch.no_grad()
def _update(norm: nn.BatchNorm1d, mean: Tensor, variance: Tensor) -> None:
    running_mean, running_var, batches = norm.running_mean, norm.running_var, norm.num_batches_tracked
    if running_mean is None or running_var is None or batches is None:
        return
    batches += 1
    share = 1 / float(batches) if norm.momentum is None else norm.momentum
    running_mean.lerp_(mean.to(running_mean.dtype), share)
    running_var.lerp_(variance.to(running_var.dtype), share)
