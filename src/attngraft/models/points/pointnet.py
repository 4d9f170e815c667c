"""PointNet and PointNet++: the maximum over points of a network on each point, once or over neighborhoods.

    PointNet    logits = head(max_i network(p_i)),     with learned transforms of coordinates and of features
    PointNet++  f_s = max over points near anchor s of network([p_j - p_s, f_j]),   twice; then over all points

Sources: C. R. Qi et al., "PointNet: Deep Learning on Point Sets for 3D Classification and Segmentation", 2017;
"PointNet++: Deep Hierarchical Feature Learning on Point Sets in a Metric Space", 2017 (single scale).
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from attngraft.errors import UsageError
from attngraft.models.points.base import PointClassifier, check_channels
from attngraft.models.points.layers import PointMap
from attngraft.models.points.operations import ball_query, farthest_points, group


class Transform(nn.Module):
    """Multiply points (B, C, N) by a matrix (C, C) that a small PointNet computes from them; at the start the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.network = point_maps((channels, 64, 128, 1024))
        self.head = dense_maps((1024, 512, 256))
        self.matrix = nn.Linear(256, channels * channels)
        nn.init.zeros_(self.matrix.weight)
        with torch.no_grad():
            self.matrix.bias.copy_(torch.eye(channels).flatten())

    def forward(self, points: Tensor) -> Tensor:
        matrix = self.matrix(self.head(self.network(points).amax(dim=2))).view(-1, points.shape[1], points.shape[1])
        return cast(Tensor, matrix.transpose(1, 2) @ points)


class PointNet(PointClassifier):
    """PointNet classifier: points (B, N, in_chans) to logits (B, num_classes). N is free.

    Args:
        in_chans: 3 for coordinates, 6 with normals.
        widths: channels of the network on points.
        hidden: channels of the head.
        transforms: learned transforms of the coordinates and of the second layer's features. The paper also penalizes the
            second one's distance from an orthogonal matrix in the loss, which is not done here.
        bias: whether linear maps have biases.
        drop_rate: dropout before the last layer.
    """

    least_batch = 2

    def __init__(
        self,
        *,
        num_classes: int = 40,
        in_chans: int = 3,
        widths: Sequence[int] = (64, 64, 64, 128, 1024),
        hidden: Sequence[int] = (512, 256),
        transforms: bool = True,
        bias: bool = True,
        drop_rate: float = 0.3,
    ) -> None:
        super().__init__()
        if len(widths) < 3:
            raise UsageError(f"widths must have 3 numbers or more, not {len(widths)}")
        self.in_chans, self.num_classes, self.num_features = in_chans, num_classes, widths[-1]
        self.coordinates = Transform(3) if transforms else None
        self.first = point_maps((in_chans, *widths[:2]), bias=bias)
        self.features = Transform(widths[1]) if transforms else None
        self.second = point_maps(widths[1:], bias=bias)
        self.classifier = classifier((widths[-1], *hidden), num_classes, drop_rate=drop_rate, bias=bias)

    def forward_features(self, points: Tensor) -> Tensor:
        """Return the maxima over points (B, num_features)."""
        check_channels(points, self.in_chans)
        x = points.transpose(1, 2)
        if self.coordinates is not None:
            x = torch.cat([self.coordinates(x[:, :3]), x[:, 3:]], dim=1)
        x = self.first(x)
        if self.features is not None:
            x = self.features(x)
        return cast(Tensor, self.second(x).amax(dim=2))


class SetAbstraction(nn.Module):
    """The maximum of a network over the points near each anchor: (B, N, 3), (B, N, C) to (B, S, 3), (B, S, widths[-1]).

    Args:
        in_channels: C.
        anchors: share of the points that are anchors, 1 / `anchors`, chosen by farthest point sampling.
        radius: distance up to which points are near.
        neighbors: number of points near an anchor; the first in their order, repeated if there are fewer.
    """

    def __init__(self, in_channels: int, widths: Sequence[int], *, anchors: int, radius: float, neighbors: int) -> None:
        super().__init__()
        self.anchors, self.radius, self.neighbors = anchors, radius, neighbors
        self.network = point_maps((3 + in_channels, *widths))

    def forward(self, xyz: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        at = group(xyz, farthest_points(xyz, max(1, xyz.shape[1] // self.anchors)))
        near = ball_query(at, xyz, self.radius, min(self.neighbors, xyz.shape[1]))
        groups = torch.cat([group(xyz, near) - at.unsqueeze(2), group(features, near)], dim=-1)
        largest = self.network(groups.flatten(0, 1).transpose(1, 2)).amax(dim=2)
        return at, largest.unflatten(0, near.shape[:2])


class PointNet2(PointClassifier):
    """PointNet++ classifier with one scale: points (B, N, in_chans) to logits (B, num_classes).

    Of 1,024 points, 512 and 128 are anchors.

    Args:
        in_chans: 3 for coordinates, 6 with normals.
        drop_rate: dropout in the head.
    """

    least_batch = 2

    def __init__(self, *, num_classes: int = 40, in_chans: int = 3, drop_rate: float = 0.4) -> None:
        super().__init__()
        self.in_chans, self.num_classes, self.num_features = in_chans, num_classes, 1024
        self.near = SetAbstraction(in_chans - 3, (64, 64, 128), anchors=2, radius=0.2, neighbors=32)
        self.far = SetAbstraction(128, (128, 128, 256), anchors=4, radius=0.4, neighbors=64)
        self.all = point_maps((3 + 256, 256, 512, 1024))
        self.classifier = classifier((1024, 512, 256), num_classes, drop_rate=drop_rate)

    def forward_features(self, points: Tensor) -> Tensor:
        """Return the maxima over points (B, num_features)."""
        check_channels(points, self.in_chans)
        xyz, features = self.far(*self.near(points[..., :3], points[..., 3:]))
        return cast(Tensor, self.all(torch.cat([xyz, features], dim=-1).transpose(1, 2)).amax(dim=2))


def point_maps(widths: Sequence[int], *, bias: bool = True) -> nn.Sequential:
    """Create linear maps with norm and ReLU at every point, (B, C, N)."""
    return nn.Sequential(*(PointMap(a, b, bias=bias) for a, b in pairwise(widths)))


def dense_maps(widths: Sequence[int], *, bias: bool = True) -> nn.Sequential:
    """Create linear maps with norm and ReLU, (B, C)."""
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b, bias=bias), nn.BatchNorm1d(b), nn.ReLU()]
    return nn.Sequential(*layers)


def classifier(widths: Sequence[int], num_classes: int, *, drop_rate: float, bias: bool = True) -> nn.Sequential:
    """Create a head: linear maps with norm and ReLU, dropout, and a linear layer."""
    last = nn.Linear(widths[-1], num_classes) if num_classes else nn.Identity()
    return nn.Sequential(*dense_maps(widths, bias=bias), nn.Dropout(drop_rate), last)
