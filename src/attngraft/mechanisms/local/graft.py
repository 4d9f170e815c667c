"""ELSA and its counterparts as grafts: each stands in for a block's whole attention, on the map. The ghost head on maps."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from timm.models.volo import OutlookAttention
from torch import Tensor

from attngraft.attention import AttentionGeometry, Geometry, Graft, GraftType, HookPoint
from attngraft.attention.graft import LinearLayer, OptionsT
from attngraft.mechanisms.local import counterparts
from attngraft.mechanisms.local.ghost import GhostHead
from attngraft.mechanisms.local.hadamard import HadamardAttention
from attngraft.mechanisms.local.unified import NETWORKS, LocalAttention, Norm
from attngraft.mechanisms.registry import register_graft

Network = Literal["swin", "net1", "net2", "net3", "net4", "net5", "net6", "net7"]
_PAPER = "ELSA: Enhanced Local Self-Attention for Vision Transformer"


class ElsaGraft(HadamardAttention, Graft):
    """`HadamardAttention` at a site."""

    def fold(self, *, before: LinearLayer | None, after: LinearLayer | None) -> Graft | str:
        return _with_constants(self, *self.ghosts())


class LocalGraft(LocalAttention, Graft):
    """`LocalAttention` at a site."""


class DepthwiseGraft(counterparts.DepthwiseConvolution, Graft):
    """`DepthwiseConvolution` at a site."""


class DynamicGraft(counterparts.DynamicConvolution, Graft):
    """`DynamicConvolution` at a site."""


class DecoupledGraft(counterparts.DecoupledFilter, Graft):
    """`DecoupledFilter` at a site."""


class OutlookGraft(OutlookAttention, Graft):
    """timm's `OutlookAttention` at a site. A recorder is offered its `weights` (B, H, places, cells, cells)."""

    def forward(self, x: Tensor) -> Tensor:
        if self.is_recording("weights"):
            self.record("weights", _outlooks(self, x))
        found: Tensor = super().forward(x)
        return found


def _outlooks(layer: Any, x: Tensor) -> Tensor:
    """Of every place for the cells of its neighborhood, one row for each cell that gets something."""
    cells = layer.kernel_size**2
    scores: Tensor = layer.attn(layer.pool(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)).flatten(1, 2)
    by_heads = scores.unflatten(-1, (layer.num_heads, cells, cells)).permute(0, 2, 1, 3, 4)
    return (by_heads * layer.scale).softmax(-1)


class GhostGraft(GhostHead, Graft):
    """`GhostHead` at a site."""

    def fold(self, *, before: LinearLayer | None, after: LinearLayer | None) -> Graft | str:
        return _with_constants(self, self.mul, self.add)


@torch.no_grad()
def _with_constants(graft: ElsaGraft | GhostGraft, mul: Tensor | None, add: Tensor | None) -> Graft | str:
    """What is the same for every image is computed once: mul^lam, gamma add."""
    if graft.lam in (0, 1) and graft.gamma in (0, 1):
        return "its ghost matrices are applied as they are trained"
    if mul is not None:
        mul.copy_(mul**graft.lam)
    if add is not None:
        add.mul_(graft.gamma)
    graft.lam, graft.gamma = int(mul is not None), float(add is not None)
    graft.options |= {"mul": graft.lam, "add": graft.gamma}
    graft.folded = "mul^lam and gamma add are computed once"
    return graft


class SpaceType(GraftType[OptionsT]):
    """Stands in for the attention of a block; what differs is the layer."""

    def hook_points(self, options: OptionsT) -> tuple[HookPoint, ...]:
        return ("space",)

    def build(self, geometry: Geometry, hook_point: HookPoint, options: OptionsT) -> Graft:
        if not isinstance(geometry, AttentionGeometry):
            raise TypeError(f"it stands in for attention, and this is a {type(geometry).__name__}")
        return self.layer(geometry.dim, geometry.heads, options)

    @abstractmethod
    def layer(self, dim: int, heads: int, options: OptionsT) -> Graft:
        """The layer for a map of `dim` channels where the host's attention has so many heads."""

    def refusal(self, geometry: Geometry, hook_point: HookPoint, options: OptionsT) -> str | None:
        heads = getattr(options, "heads", None) or cast(AttentionGeometry, geometry).heads
        if geometry.dim % heads:
            return f"{heads} heads do not divide its {geometry.dim} channels; choose others with heads="
        return None


def _check_kernel(size: int) -> None:
    if size < 1 or size % 2 == 0:
        raise ValueError(f"kernel is an odd number, not {size}")


def _check_heads(heads: int | None) -> None:
    if heads is not None and heads < 1:
        raise ValueError(f"heads is 1 or more, not {heads}")


@dataclass(frozen=True)
class ElsaOptions:
    """What `elsa` leaves open; the defaults are ELSA-Swin-S's."""

    kernel: int = 7  #: rows, and columns, of a neighborhood; odd
    heads: int | None = None  #: the host's, if not given
    group_width: int = 8  #: channels in a group of the convolution that makes the filters; ELSA-Swin-T has 4
    mul: int = 0  #: exponent of the ghost head's multiplier; 0: without
    add: float = 1.0  #: factor of the ghost head's addend; 0: without
    strict: bool = False  #: Eq. 7 as printed, instead of the published models' form

    def __post_init__(self) -> None:
        _check_kernel(self.kernel)
        _check_heads(self.heads)
        if self.group_width < 1 or self.mul < 0:
            raise ValueError(f"group_width is 1 or more and mul 0 or more, not {self.group_width} and {self.mul}")


class ElsaType(SpaceType[ElsaOptions]):
    """`elsa`."""

    name = "elsa"
    summary = "Hadamard attention with the ghost head, in place of a block's attention"
    source = f"{_PAPER}, Eqs. 7 and 8"
    Options = ElsaOptions

    def layer(self, dim: int, heads: int, options: ElsaOptions) -> Graft:
        return ElsaGraft(
            dim,
            options.heads or heads,
            kernel_size=options.kernel,
            group_width=options.group_width,
            lam=options.mul,
            gamma=options.add,
            strict=options.strict,
        )


@dataclass(frozen=True)
class LocalOptions:
    """What `lsa` leaves open; the defaults are Swin's attention, without shift."""

    network: Network = "swin"  #: which terms of Eq. 4 are summed
    area: Literal["window", "neighborhood"] = "window"  #: among whom
    size: int = 7  #: rows, and columns, of it
    shift: int = 0  #: of windows
    norm: Norm = "softmax"  #: of the scores
    heads: int | None = None  #: the host's, if not given

    def __post_init__(self) -> None:
        _check_heads(self.heads)
        if self.area == "neighborhood":
            if self.size < 1 or self.size % 2 == 0:
                raise ValueError(f"size of a neighborhood is an odd number, not {self.size}")
            if self.shift:
                raise ValueError("shift is for windows only")
        if self.size < 1 or not 0 <= self.shift < self.size:
            raise ValueError(f"shift is less than size, not {self.shift} and {self.size}")


class LocalType(SpaceType[LocalOptions]):
    """`lsa`."""

    name = "lsa"
    summary = "local self-attention of the paper's family (Eq. 4): terms, windows or neighborhoods, norm"
    source = f"{_PAPER}, Eq. 4, Tables 1 to 3"
    Options = LocalOptions

    def layer(self, dim: int, heads: int, options: LocalOptions) -> Graft:
        return LocalGraft(
            dim,
            options.heads or heads,
            terms=NETWORKS[options.network],
            area=options.area,
            size=options.size,
            shift=options.shift,
            norm=options.norm,
        )


@dataclass(frozen=True)
class InvolutionOptions:
    """What `involution` leaves open."""

    kernel: int = 7  #: rows, and columns, of a neighborhood; odd
    heads: int | None = None  #: groups of channels with a filter of their own; the host's, if not given

    def __post_init__(self) -> None:
        _check_kernel(self.kernel)
        _check_heads(self.heads)


class InvolutionType(SpaceType[InvolutionOptions]):
    """`involution`."""

    name = "involution"
    summary = "filters that each pixel makes of itself alone, without a norm"
    source = f"{_PAPER}, Eq. 2"
    Options = InvolutionOptions

    def layer(self, dim: int, heads: int, options: InvolutionOptions) -> Graft:
        return LocalGraft(dim, options.heads or heads, terms=NETWORKS["net2"], size=options.kernel, norm="identity")


@dataclass(frozen=True)
class DepthwiseOptions:
    """What `dwconv` leaves open."""

    kernel: int = 7  #: rows, and columns, of a neighborhood; odd
    heads: int | None = None  #: groups of channels that share a filter; one for each channel, if not given

    def __post_init__(self) -> None:
        _check_kernel(self.kernel)
        _check_heads(self.heads)


class DepthwiseType(SpaceType[DepthwiseOptions]):
    """`dwconv`."""

    name = "dwconv"
    summary = "a depthwise convolution between two linear maps"
    source = f"{_PAPER}, Table 5, Figure 2"
    Options = DepthwiseOptions

    def layer(self, dim: int, heads: int, options: DepthwiseOptions) -> Graft:
        return DepthwiseGraft(dim, heads=options.heads, kernel_size=options.kernel)


@dataclass(frozen=True)
class DynamicOptions:
    """What `dynamic_dwconv` leaves open."""

    kernel: int = 7  #: rows, and columns, of a neighborhood; odd
    reduction: int = 4  #: channels over the squeezed width

    def __post_init__(self) -> None:
        _check_kernel(self.kernel)
        if self.reduction < 1:
            raise ValueError(f"reduction is at least 1, not {self.reduction}")


class DynamicType(SpaceType[DynamicOptions]):
    """`dynamic_dwconv`."""

    name = "dynamic_dwconv"
    summary = "a depthwise convolution whose filters are made of the image's mean"
    source = f"{_PAPER}, Table 5"
    Options = DynamicOptions

    def layer(self, dim: int, heads: int, options: DynamicOptions) -> Graft:
        return DynamicGraft(dim, kernel_size=options.kernel, reduction=options.reduction)


@dataclass(frozen=True)
class DecoupledOptions:
    """What `ddf` leaves open."""

    kernel: int = 7  #: rows, and columns, of a neighborhood; odd
    squeeze: float = 0.2  #: squeezed width over channels

    def __post_init__(self) -> None:
        _check_kernel(self.kernel)
        if not 0 < self.squeeze <= 1:
            raise ValueError(f"squeeze is more than 0 and at most 1, not {self.squeeze:g}")


class DecoupledType(SpaceType[DecoupledOptions]):
    """`ddf`."""

    name = "ddf"
    summary = "decoupled dynamic filters: one of the pixel times one of channel and image"
    source = f"{_PAPER}, Table 5"
    Options = DecoupledOptions

    def layer(self, dim: int, heads: int, options: DecoupledOptions) -> Graft:
        return DecoupledGraft(dim, kernel_size=options.kernel, squeeze=options.squeeze)


@dataclass(frozen=True)
class OutlookOptions:
    """What `outlooker` leaves open; the defaults are VOLO's."""

    kernel: int = 3  #: rows, and columns, of a neighborhood; odd
    stride: int = 2  #: from one weighed neighborhood to the next
    heads: int | None = None  #: the host's, if not given

    def __post_init__(self) -> None:
        _check_kernel(self.kernel)
        _check_heads(self.heads)
        if not 1 <= self.stride <= self.kernel:
            raise ValueError(f"stride is from 1 to kernel, so that every pixel is seen, not {self.stride}")


class OutlookType(SpaceType[OutlookOptions]):
    """`outlooker`."""

    name = "outlooker"
    summary = "outlook attention (VOLO): windows weighed by their middle, summed up where they overlap"
    source = f"{_PAPER}, Table 5; timm's OutlookAttention"
    Options = OutlookOptions

    def layer(self, dim: int, heads: int, options: OutlookOptions) -> Graft:
        return OutlookGraft(
            dim,
            options.heads or heads,
            kernel_size=options.kernel,
            padding=options.kernel // 2,
            stride=options.stride,
        )


@dataclass(frozen=True)
class GhostOptions:
    """What `ghost` leaves open."""

    parts: int = 2  #: ghost heads for each head
    mul: int = 1  #: exponent of the multiplier; 0: without
    add: float = 1.0  #: factor of the addend; 0: without
    identity: bool = False  #: start with mul 1 and add 0, so that a pretrained host starts unchanged

    def __post_init__(self) -> None:
        if self.parts < 1 or self.mul < 0:
            raise ValueError(f"parts is 1 or more and mul 0 or more, not {self.parts} and {self.mul}")
        if not (self.mul or self.add):
            raise ValueError("mul and add are both 0, and nothing is left of the ghost head")


class GhostType(GraftType[GhostOptions]):
    """`ghost`."""

    name = "ghost"
    summary = "the ghost head on attention maps: several of each, by static matrices of relative places"
    source = f"{_PAPER}, Eq. 8, Table 11"
    Options = GhostOptions

    def hook_points(self, options: GhostOptions) -> tuple[HookPoint, ...]:
        return ("weights",)

    def build(self, geometry: Geometry, hook_point: HookPoint, options: GhostOptions) -> Graft:
        site = cast(AttentionGeometry, geometry)
        grid = site.window or site.grid
        if grid is None:
            raise TypeError("it needs a grid; `refusal` says so")
        return GhostGraft(
            site.heads,
            grid,
            prefix=site.prefix_tokens,
            parts=options.parts,
            lam=options.mul,
            gamma=options.add,
            identity=options.identity,
        )

    def refusal(self, geometry: Geometry, hook_point: HookPoint, options: GhostOptions) -> str | None:
        site = cast(AttentionGeometry, geometry)
        grid = site.window or site.grid
        if not site.own_keys:
            return "its queries are not its keys, so no key lies anywhere as seen from a query; name other sites with @"
        if grid is None or site.tokens != site.prefix_tokens + grid[0] * grid[1]:
            return "its tokens stand on no grid that is known before it runs; name other sites with @"
        if site.talking:
            return "its heads are mixed behind the softmax, so there cannot be more of them; name other sites with @"
        if site.value_width % options.parts:
            return f"{options.parts} ghost heads cannot share the {site.value_width} channels of a head; choose parts="
        return None

    def starts_as_identity(self, options: GhostOptions) -> bool:
        return options.identity


TYPES = [
    register_graft(each)
    for each in (
        ElsaType(),
        LocalType(),
        InvolutionType(),
        DepthwiseType(),
        DynamicType(),
        DecoupledType(),
        OutlookType(),
        GhostType(),
    )
]
