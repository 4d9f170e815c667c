"""Decoders of segmentation: UPerNet, semantic FPN, linear, and the auxiliary FCN head.

`ConvNormAct` is a convolution without bias, a norm and ReLU. Maps are upsampled bilinearly, without aligned corners.

Sources: T. Xiao et al., "Unified Perceptual Parsing for Scene Understanding", 2018 (UPerNet); A. Kirillov et al., "Panoptic
Feature Pyramid Networks", 2019 (semantic FPN), in the forms whose sizes the papers print.
"""

import math
from collections.abc import Sequence
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.models.dense.levels import STRIDES

Norm = Literal["batch", "group", "sync"]
_DROPOUT = 0.1


def norm_layer(kind: Norm, channels: int) -> nn.Module:
    """Return a norm over the channels of maps; group norm has 32 groups, or fewer, of at least two channels."""
    if kind == "group":
        groups = math.gcd(channels, 32)
        return nn.GroupNorm(groups if groups < channels else max(1, channels // 2), channels)
    return nn.SyncBatchNorm(channels) if kind == "sync" else nn.BatchNorm2d(channels)


class ConvNormAct(nn.Sequential):
    """Convolution without bias, norm, ReLU."""

    def __init__(self, channels: int, out: int, kernel: int, *, norm: Norm) -> None:
        convolution = nn.Conv2d(channels, out, kernel, padding=kernel // 2, bias=False)
        super().__init__(convolution, norm_layer(norm, out), nn.ReLU())


def resized(x: Tensor, like: Tensor) -> Tensor:
    """Resize maps bilinearly to the size of `like`."""
    return F.interpolate(x, like.shape[-2:], mode="bilinear", align_corners=False)


class UPerNet(nn.Module):
    """Pyramid pooling of the last level, a feature pyramid, and fusion at stride 4.

        y_4 = bottleneck [x_4, pooled x_4 at each size];    y_i = lateral_i(x_i) + up(y_(i+1))
        out = fuse [smooth_1(y_1), smooth_2(y_2), smooth_3(y_3), y_4]

    Args:
        channels: of the four levels.
        width: of the decoder, 512 in the papers.
        pools: sides of the pooled grids.
    """

    last_only = False

    def __init__(self, channels: Sequence[int], *, width: int, pools: Sequence[int] = (1, 2, 3, 6), norm: Norm) -> None:
        super().__init__()
        *lower, last = channels
        self.width, self.pools = width, tuple(pools)
        self.pooled = nn.ModuleList(ConvNormAct(last, width, 1, norm=norm) for _ in pools)
        self.bottleneck = ConvNormAct(last + len(self.pools) * width, width, 3, norm=norm)
        self.laterals = nn.ModuleList(ConvNormAct(each, width, 1, norm=norm) for each in lower)
        self.smooth = nn.ModuleList(ConvNormAct(width, width, 3, norm=norm) for _ in lower)
        self.fuse = ConvNormAct(len(channels) * width, width, 3, norm=norm)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Return (B, width, H / 4, W / 4) from the four levels."""
        *lower, last = maps
        pooled = [
            resized(layer(F.adaptive_avg_pool2d(last, side)), last)
            for side, layer in zip(self.pools, self.pooled, strict=True)
        ]
        x = self.bottleneck(torch.cat([last, *pooled], dim=1))
        pyramid = [x]
        for index in reversed(range(len(lower))):
            x = self.laterals[index](lower[index]) + resized(x, lower[index])
            pyramid.append(x)
        first = pyramid[-1]
        out = [smooth(x) for smooth, x in zip(self.smooth, reversed(pyramid[1:]), strict=True)]
        fused: Tensor = self.fuse(torch.cat([resized(x, first) for x in (*out, pyramid[0])], dim=1))
        return fused


class SemanticFPN(nn.Module):
    """A feature pyramid whose levels are upsampled to stride 4, step by step, and added.

    Args:
        channels: of the four levels.
        width: of the pyramid, 256 in the papers; the branches have half of it.
    """

    last_only = False

    def __init__(self, channels: Sequence[int], *, width: int, norm: Norm) -> None:
        super().__init__()
        self.width = width // 2
        self.laterals = nn.ModuleList(nn.Conv2d(each, width, 1) for each in channels)
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in channels)
        self.branches = nn.ModuleList(
            nn.ModuleList(
                ConvNormAct(width if step == 0 else self.width, self.width, 3, norm=norm)
                for step in range(max(1, int(math.log2(stride // STRIDES[0]))))
            )
            for stride in STRIDES
        )

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Return (B, width / 2, H / 4, W / 4) from the four levels."""
        x = self.laterals[-1](maps[-1])
        pyramid = [x]
        for index in reversed(range(len(maps) - 1)):
            lateral = self.laterals[index](maps[index])
            x = lateral + F.interpolate(x, lateral.shape[-2:], mode="nearest")
            pyramid.append(x)
        added = []
        for level, (x, smooth) in enumerate(zip(reversed(pyramid), self.smooth, strict=True)):
            x = smooth(x)
            for step, layer in enumerate(cast(nn.ModuleList, self.branches[level])):
                x = layer(x)
                if level > 0:
                    x = resized(x, maps[level - 1 - step])
            added.append(x)
        return torch.stack(added).sum(dim=0)


class Last(nn.Module):
    """The last map of the host, for a linear head."""

    last_only = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.width = channels

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        return maps[-1]


class Classifier(nn.Sequential):
    """Dropout and a 1x1 convolution to logits."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(nn.Dropout2d(_DROPOUT), nn.Conv2d(channels, classes, 1))


class AuxiliaryHead(nn.Sequential):
    """FCN head on the third level, used in training only."""

    def __init__(self, channels: int, classes: int, *, norm: Norm) -> None:
        super().__init__(ConvNormAct(channels, 256, 3, norm=norm), Classifier(256, classes))
