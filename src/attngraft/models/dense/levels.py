"""Maps of stride 4, 8, 16 and 32 from the intermediate outputs of a grafted host.

Hosts with several resolutions (Swin, PVTv2) give one map per resolution, hosts with one (ViT, Mixer, BiXT) the outputs of
four depths: blocks 4, 6, 8 and 12 of 12, as in the CB paper. A map of another stride than its level's is upsampled by
transposed convolutions or downsampled by max pooling. The host is called by `forward_intermediates`, so its modules keep
their names, and specifications and graft files of the classifier fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.errors import HostError

STRIDES = (4, 8, 16, 32)
_DEPTHS = (4, 6, 8, 12)  #: twelfths of the depth at which a host with one resolution is read


@dataclass(frozen=True)
class Level:
    """One of the host's maps: index for `forward_intermediates`, channels and stride."""

    index: int
    channels: int
    stride: int


def host_levels(host: nn.Module) -> tuple[Level, Level, Level, Level]:
    """Return the host's maps for the four levels; a map may serve several levels.

    Raises:
        HostError: the host has no intermediate maps.
    """
    info = getattr(host, "feature_info", None)
    if not callable(getattr(host, "forward_intermediates", None)) or not info:
        raise HostError(
            f"{type(host).__name__}: has no forward_intermediates, which returns the maps for dense tasks; use a timm host "
            "such as swin_tiny_patch4_window7_224 or vit_tiny_patch16_224"
        )
    every = [Level(index, each["num_chs"], each["reduction"]) for index, each in enumerate(info)]
    if len({level.stride for level in every}) > 1:
        found = [*[every[0]] * max(0, 4 - len(every)), *every[-4:]]
    else:
        found = [every[max(0, round(len(every) * depth / 12) - 1)] for depth in _DEPTHS]
    return cast(tuple[Level, Level, Level, Level], tuple(found))


class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of a map (B, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Levels(nn.Module):
    """Norm and resampling of the host's maps; one module per level.

    Args:
        levels: from `host_levels`.
        norm: normalize the maps of hosts with several resolutions.
    """

    def __init__(self, levels: Sequence[Level], *, norm: bool = True) -> None:
        super().__init__()
        self.channels = [level.channels for level in levels]
        self.indices = [level.index for level in levels]
        self.strides = [level.stride for level in levels]
        norm = norm and len({level.stride for level in levels}) > 1
        self.norms = nn.ModuleList(LayerNorm2d(level.channels) if norm else nn.Identity() for level in levels)
        self.resample = nn.ModuleList(_resampling(level, stride) for level, stride in zip(levels, STRIDES, strict=True))

    def forward(self, host: nn.Module, images: Tensor) -> list[Tensor]:
        """Return maps (B, C, ceil(H / stride), ceil(W / stride)) of the four strides."""
        taken = sorted(set(self.indices))
        maps: list[Tensor] = cast(Any, host).forward_intermediates(
            images, indices=taken, norm=False, output_fmt="NCHW", intermediates_only=True
        )
        found = []
        modules = zip(self.indices, self.strides, self.norms, self.resample, STRIDES, strict=True)
        for index, own, norm, resample, stride in modules:
            x = resample(_centered(norm(maps[taken.index(index)]), images, own))
            size = [-(-side // stride) for side in images.shape[-2:]]
            if list(x.shape[-2:]) != size:  # grids that are no multiple of the stride, such as those of PiT
                x = F.interpolate(x, size, mode="bilinear", align_corners=False)
            found.append(x)
        return found


def _centered(x: Tensor, images: Tensor, stride: int) -> Tensor:
    """Move the map of unpadded patches of twice the stride (PiT), one row and column short, to the grid of the stride."""
    if any(side != full // stride - 1 for side, full in zip(x.shape[-2:], images.shape[-2:], strict=True)):
        return x
    return F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 2, stride=1)


def _resampling(level: Level, stride: int) -> nn.Module:
    """Return a module from the stride of a map to another: doubling by transposed convolutions, or max pooling."""
    if level.stride < stride:
        return nn.MaxPool2d(stride // level.stride, ceil_mode=True)
    layers: list[nn.Module] = []
    scale = level.stride // stride
    while scale > 1:
        layers += [nn.BatchNorm2d(level.channels), nn.GELU()] if layers else []
        layers.append(nn.ConvTranspose2d(level.channels, level.channels, 2, stride=2))
        scale //= 2
    return nn.Sequential(*layers)
