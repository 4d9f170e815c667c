"""Layers of PointMLP: normalized neighborhoods of points, and residual point-wise networks over them.

    anchors = farthest points;  groups = k nearest points of each           AffineGroup
    y_s = pos(max_j pre([alpha * (x_sj - m_s) / std + beta, x_s]))          Stage
    y_i = extract(fuse([x_i, sum of w_ij x_j over 3 nearest j]))            FeaturePropagation

Letters: B clouds, N points, S anchors (S <= N), k neighbors, C channels. Points are (B, N, 3) and their features
(B, N, C), like tokens; only inside the point-wise networks channels come first. Distances are squared Euclidean, in any
unit, computed in float32 at least.

Source: X. Ma et al., "Rethinking Network Design and Local Geometry in Point Cloud: A Simple Residual MLP Framework", 2022.
Parameters have the names of the authors' weights.
"""

from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.models.points.neighborhoods import Neighborhoods, deviation, neighborhoods, normalized
from attngraft.models.points.operations import group, three_interpolate

Normalize = Literal["anchor", "center"]
EPS = 1e-5  #: added to the deviation of a cloud's groups


class AffineGroup(nn.Module):
    """Neighborhoods of anchors, with centered features, divided by the cloud's standard deviation.

        g_sj = alpha * (x_sj - m_s) / (std + 1e-5) + beta,   j one of the k nearest points of anchor s
        out  = [g_sj, x_s]

    `m_s` is the anchor's feature ("anchor") or the mean of the neighborhood ("center"). `std` is one number per cloud: the
    unbiased deviation of all `x_sj - m_s`, over anchors, neighbors and channels. With `use_xyz` the neighbors' coordinates
    are three more channels of `x_sj`. The `x_s` at the end is the anchor's input feature. The order of neighbors in a group
    is not defined; the anchor is one of them.

    Shapes: points (B, N, 3) and features (B, N, C) to anchors (B, S, 3) and groups (B, S, k, out_channels).

    Args:
        channels: C.
        anchors: S, chosen by farthest point sampling; None: every point is an anchor, in the points' order.
        neighbors: k.

    Raises:
        ValueError: sizes are below 1 or `normalize` is unknown; on a call, shapes do not fit.
        UsageError: on a call, a cloud has fewer points than S or k.
    """

    def __init__(
        self,
        channels: int,
        *,
        anchors: int | None,
        neighbors: int,
        normalize: Normalize = "anchor",
        use_xyz: bool = False,
    ) -> None:
        super().__init__()
        if min(channels, neighbors, 1 if anchors is None else anchors) < 1:
            raise ValueError(f"{channels=}, {anchors=} and {neighbors=} must be 1 or more")
        if normalize not in ("anchor", "center"):
            raise ValueError(f"normalize must be 'anchor' or 'center', not {normalize!r}")
        self.channels, self.anchors, self.neighbors = channels, anchors, neighbors
        self.normalize, self.use_xyz = normalize, use_xyz
        grouped = channels + (3 if use_xyz else 0)
        self.out_channels = grouped + channels
        self.affine_alpha = nn.Parameter(torch.ones(1, 1, 1, grouped))
        self.affine_beta = nn.Parameter(torch.zeros(1, 1, 1, grouped))

    def neighborhoods(self, xyz: Tensor) -> Neighborhoods:
        """Return the neighborhoods in points (B, N, 3), which several layers may share."""
        return neighborhoods(xyz, anchors=self.anchors, neighbors=self.neighbors)

    def forward(self, xyz: Tensor, features: Tensor, near: Neighborhoods | None = None) -> tuple[Tensor, Tensor]:
        """Return the anchors (B, S, 3) and the groups (B, S, k, out_channels)."""
        _check_points(xyz, features, self.channels, what="")
        near = self.neighborhoods(xyz) if near is None else near
        rows, centers, anchor_features = self._rows(xyz, features, near)
        offset = group(rows, near.near) - centers.unsqueeze(2)
        scaled = offset / (offset.std(dim=(1, 2, 3), keepdim=True) + EPS)
        grouped = self.affine_alpha * scaled + self.affine_beta
        repeated = anchor_features.unsqueeze(2).expand(-1, -1, self.neighbors, -1)
        return near.at_anchors(xyz), torch.cat([grouped, repeated], dim=-1)

    def linear(
        self, xyz: Tensor, features: Tensor, near: Neighborhoods, weight: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return u (B, N, C') and v (B, S, C'), where `u_j + v_s` is a linear layer on the groups (`neighborhoods`).

        `weight` is (C', out_channels).
        """
        rows, centers, anchor_features = self._rows(xyz, features, near)
        first, second = weight[:, : rows.shape[-1]], weight[:, rows.shape[-1] :]
        scale = 1 / (deviation(rows, centers, near) + EPS)
        scaled = first * self.affine_alpha.view(-1)
        constant = first @ self.affine_beta.view(-1)
        u, at_centers = F.linear(rows, scaled) * scale, F.linear(centers, scaled) * scale
        return u, F.linear(anchor_features, second, constant if bias is None else constant + bias) - at_centers

    def _rows(self, xyz: Tensor, features: Tensor, near: Neighborhoods) -> tuple[Tensor, Tensor, Tensor]:
        """Return what is grouped (B, N, C + 3 or C), the centers (B, S, same) and the anchors' features (B, S, C)."""
        rows = torch.cat([features, xyz.to(features.dtype)], dim=-1) if self.use_xyz else features
        centers = near.at_anchors(rows) if self.normalize == "anchor" else near.sums(rows) / self.neighbors
        return rows, centers, near.at_anchors(features)

    def extra_repr(self) -> str:
        shown = f"{self.channels}, anchors={self.anchors}, neighbors={self.neighbors}"
        return f"{shown}, normalize={self.normalize!r}, use_xyz={self.use_xyz}"


class Stage(nn.Module):
    """One stage: neighborhoods, a network on every neighbor, max pooling, a network on the maximum.

        y_s = pos(max_j pre(group_sj))

    Shapes: points (B, N, 3) and features (B, N, channels) to anchors (B, S, 3) and features (B, S, out_channels). The
    paper's model has four stages, each with half the points and twice the channels of the previous stage.

    Args:
        pre_blocks: residual blocks before the maximum.
        pos_blocks: residual blocks after it.
        bias: whether point-wise linear maps have biases; False in the paper's classifier, True in its segmentation model.
        anchors, neighbors, normalize, use_xyz: see `AffineGroup`, also for the errors.
    """

    def __init__(
        self,
        channels: int,
        out_channels: int,
        *,
        anchors: int | None,
        neighbors: int,
        normalize: Normalize = "anchor",
        use_xyz: bool = False,
        pre_blocks: int = 2,
        pos_blocks: int = 2,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.grouper = AffineGroup(channels, anchors=anchors, neighbors=neighbors, normalize=normalize, use_xyz=use_xyz)
        self.pre = NeighborhoodNetwork(self.grouper.out_channels, out_channels, blocks=pre_blocks, bias=bias)
        self.pos = ResidualNetwork(out_channels, blocks=pos_blocks, bias=bias)

    def forward(self, xyz: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        _check_points(xyz, features, self.grouper.channels, what="")
        near = self.grouper.neighborhoods(xyz)
        return near.at_anchors(xyz), self.pos(self.pre.grouped(self.grouper, xyz, features, near)).transpose(1, 2)

    def plain(self, xyz: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same by the formula, from groups in memory: the reference of `forward`."""
        anchors, groups = self.grouper(xyz, features)
        return anchors, self.pos(self.pre(groups)).transpose(1, 2)


class FeaturePropagation(nn.Module):
    """Decoder step: interpolate features of coarse points at fine points, and fuse them with the fine features.

        w_ij = 1 / (|p_i - q_j|^2 + 1e-8), over the 3 nearest j, divided by their sum
        y    = extraction(fuse([fine_i, sum_j w_ij coarse_j]))

    With fewer than three coarse points, all of them are used.

    Shapes: points (B, N, 3) and (B, S, 3), features (B, N, C1) and (B, S, C2) to (B, N, out_channels).

    Args:
        in_channels: C1 + C2.
        blocks: residual blocks after the fusing map.
        bias: whether point-wise linear maps have biases.

    Raises:
        ValueError: on a call, features do not match the points, or their channels do not sum to `in_channels`.
    """

    def __init__(self, in_channels: int, out_channels: int, *, blocks: int = 4, bias: bool = True) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.fuse = PointMap(in_channels, out_channels, bias=bias)
        self.extraction = ResidualNetwork(out_channels, blocks=blocks, bias=bias)

    def forward(self, xyz_fine: Tensor, xyz_coarse: Tensor, fine: Tensor, coarse: Tensor) -> Tensor:
        _check_points(xyz_fine, fine, fine.shape[-1], what="fine ")
        _check_points(xyz_coarse, coarse, self.in_channels - fine.shape[-1], what="coarse ")
        joined = torch.cat([fine, three_interpolate(xyz_fine, xyz_coarse, coarse)], dim=-1)
        return cast(Tensor, self.extraction(self.fuse(joined.transpose(1, 2))).transpose(1, 2))


# --- point-wise networks, channels first --------------------------------------------------------------------------


class PointMap(nn.Module):
    """`relu(norm(W x + b))` at every point: (B, C, N) to (B, C', N)."""

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool = True) -> None:
        super().__init__()
        self.net = nn.Sequential(*_linear_norm(in_channels, out_channels, bias=bias), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.net(x))


class PointResBlock(nn.Module):
    """`relu(x + norm(W2 relu(norm(W1 x))))` at every point: (B, C, N) to the same shape.

    `expansion` is the hidden width, relative to C.
    """

    def __init__(self, channels: int, *, bias: bool = True, expansion: float = 1.0) -> None:
        super().__init__()
        hidden = int(expansion * channels)
        self.net1 = nn.Sequential(*_linear_norm(channels, hidden, bias=bias), nn.ReLU())
        self.net2 = nn.Sequential(*_linear_norm(hidden, channels, bias=bias))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.net2(self.net1(x)))


class ResidualNetwork(nn.Module):
    """A sequence of residual blocks: (B, C, N) to the same shape."""

    def __init__(self, channels: int, *, blocks: int, bias: bool = True, expansion: float = 1.0) -> None:
        super().__init__()
        layers = (PointResBlock(channels, bias=bias, expansion=expansion) for _ in range(blocks))
        self.operation = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.operation(x))


class NeighborhoodNetwork(nn.Module):
    """A point map and residual blocks over every neighbor, then max pooling: (B, S, k, C) to (B, C', S)."""

    def __init__(
        self, in_channels: int, out_channels: int, *, blocks: int, bias: bool = True, expansion: float = 1.0
    ) -> None:
        super().__init__()
        self.transfer = PointMap(in_channels, out_channels, bias=bias)
        layers = (PointResBlock(out_channels, bias=bias, expansion=expansion) for _ in range(blocks))
        self.operation = nn.Sequential(*layers)

    def forward(self, groups: Tensor) -> Tensor:
        neighbors = groups.flatten(0, 1).transpose(1, 2)
        largest = self.operation(self.transfer(neighbors)).amax(dim=2)
        return cast(Tensor, largest.unflatten(0, groups.shape[:2]).transpose(1, 2))

    def grouped(self, grouper: AffineGroup, xyz: Tensor, features: Tensor, near: Neighborhoods) -> Tensor:
        """Return the same for the groups of `grouper`, with the first map computed on points (`neighborhoods`)."""
        linear, norm, _ = cast(tuple[nn.Conv1d, nn.BatchNorm1d, nn.Module], tuple(self.transfer.net))
        u, v = grouper.linear(xyz, features, near, linear.weight.squeeze(-1), linear.bias)
        u, v = normalized(u, v, near, norm)
        if not self.operation:
            return torch.relu(near.maxima(u) + v).transpose(1, 2)
        neighbors = torch.relu(group(u, near.near) + v.unsqueeze(2)).flatten(0, 1).transpose(1, 2)
        return cast(Tensor, self.operation(neighbors).amax(dim=2).unflatten(0, near.near.shape[:2]).transpose(1, 2))


def _linear_norm(in_channels: int, out_channels: int, *, bias: bool) -> tuple[nn.Module, nn.Module]:
    return nn.Conv1d(in_channels, out_channels, 1, bias=bias), nn.BatchNorm1d(out_channels)


def _check_points(xyz: Tensor, features: Tensor, channels: int, *, what: str) -> None:
    if xyz.ndim != 3 or xyz.shape[-1] != 3:
        raise ValueError(f"{what}points must be (B, N, 3), not {tuple(xyz.shape)}")
    if features.shape != (*xyz.shape[:2], channels):
        raise ValueError(
            f"{what}features at {tuple(xyz.shape)} points must be {(*xyz.shape[:2], channels)}, not {tuple(features.shape)}"
        )
