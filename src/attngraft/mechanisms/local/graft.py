"""The grafts of local attention: replacements of a block's attention, and the ghost head on attention maps."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from timm.models.volo import OutlookAttention
from torch import Tensor

from attngraft.attention import Geometry, Graft, GraftType, HookPoint
from attngraft.attention.graft import LinearLayer
from attngraft.mechanisms.common import attention_geometry, check_odd, check_positive
from attngraft.mechanisms.local import counterparts
from attngraft.mechanisms.local.ghost import GhostHead
from attngraft.mechanisms.local.hadamard import HadamardAttention
from attngraft.mechanisms.local.unified import NETWORKS, LocalAttention, Norm
from attngraft.mechanisms.registry import register_graft

Network = Literal["swin", "net1", "net2", "net3", "net4", "net5", "net6", "net7"]
_PAPER = "ELSA: Enhanced Local Self-Attention for Vision Transformer"


class ElsaGraft(HadamardAttention, Graft):
    """`HadamardAttention` as a graft."""

    def fold(self, *, before: LinearLayer | None, after: LinearLayer | None) -> Graft | str:
        return _fold_constants(self, *self.ghosts())


class LocalGraft(LocalAttention, Graft):
    """`LocalAttention` as a graft."""


class DepthwiseGraft(counterparts.DepthwiseConvolution, Graft):
    """`DepthwiseConvolution` as a graft."""


class DynamicGraft(counterparts.DynamicConvolution, Graft):
    """`DynamicConvolution` as a graft."""


class DecoupledGraft(counterparts.DecoupledFilter, Graft):
    """`DecoupledFilter` as a graft."""


class OutlookGraft(OutlookAttention, Graft):
    """timm's `OutlookAttention` as a graft.

    Records `weights` (B, H, neighborhoods, cells, cells), with one row per output cell.
    """

    kernel_size: Any
    attn: Any
    pool: Any

    def forward(self, x: Tensor) -> Tensor:
        if self.is_recording("weights"):
            cells = self.kernel_size**2
            scores = self.attn(self.pool(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)).flatten(1, 2)
            by_head = scores.unflatten(-1, (self.num_heads, cells, cells)).permute(0, 2, 1, 3, 4)
            self.record("weights", (by_head * self.scale).softmax(-1))
        return super().forward(x)


class GhostGraft(GhostHead, Graft):
    """`GhostHead` as a graft."""

    def fold(self, *, before: LinearLayer | None, after: LinearLayer | None) -> Graft | str:
        return _fold_constants(self, self.mul, self.add)


@torch.no_grad()
def _fold_constants(graft: ElsaGraft | GhostGraft, mul: Tensor | None, add: Tensor | None) -> Graft | str:
    """Compute mul^lam and gamma add in advance, because they do not depend on the image."""
    if graft.lam in (0, 1) and graft.gamma in (0, 1):
        return "its ghost matrices are applied as trained, so nothing can be computed in advance"
    if mul is not None:
        mul.copy_(mul**graft.lam)
    if add is not None:
        add.mul_(graft.gamma)
    graft.lam, graft.gamma = int(mul is not None), float(add is not None)
    graft.options |= {"mul": graft.lam, "add": graft.gamma}
    graft.folded = "mul^lam and gamma add are computed in advance"
    return graft


class SpaceType(GraftType[Any]):
    """Graft type that replaces a block's attention by `layer(dim, heads, options)`."""

    def __init__(
        self, name: str, summary: str, source: str, options: type, layer: Callable[[int, int, Any], Graft]
    ) -> None:
        self.name, self.summary, self.source, self.Options = name, summary, f"{_PAPER}, {source}", options
        self.layer = layer

    def hook_points(self, options: Any) -> tuple[HookPoint, ...]:
        return ("space",)

    def build(self, geometry: Geometry, hook_point: HookPoint, options: Any) -> Graft:
        site = attention_geometry(geometry)
        return self.layer(site.dim, getattr(options, "heads", None) or site.heads, options)

    def refusal(self, geometry: Geometry, hook_point: HookPoint, options: Any) -> str | None:
        heads = getattr(options, "heads", None) or attention_geometry(geometry).heads
        if heads < 1 or geometry.dim % heads:
            return f"its {geometry.dim} channels are not divisible by {heads} heads; set another number with heads="
        return None


class LocalType(SpaceType):
    """The graft type `lsa`."""

    def build(self, geometry: Geometry, hook_point: HookPoint, options: Any) -> Graft:
        shift = attention_geometry(geometry).shift[0] if options.shift == "host" else options.shift or 0
        return super().build(geometry, hook_point, replace(options, shift=shift))

    def refusal(self, geometry: Geometry, hook_point: HookPoint, options: Any) -> str | None:
        rows, columns = attention_geometry(geometry).shift
        shown = f"{rows}" if rows == columns else f"{rows} rows and {columns} columns"
        if options.area == "window" and options.shift is None and (rows or columns):
            return (
                f"the host shifts its windows by {shown} here; set shift=host to keep this, or shift=0 for windows that are "
                "not shifted"
            )
        if options.shift == "host" and rows != columns:
            return f"the host shifts its windows by {shown}, and lsa only by one number for both; set shift="
        if options.shift == "host" and rows >= options.size:
            return (
                f"the host's shift, {rows}, must be less than the size of a window, {options.size}; set size= or shift="
            )
        return super().refusal(geometry, hook_point, options)


@dataclass(frozen=True)
class ElsaOptions:
    """Options of `elsa`; the defaults are those of ELSA-Swin-S."""

    kernel: int = 7  #: height and width of a neighborhood, odd
    heads: int | None = None  #: number of heads; by default the host's
    group_width: int = 8  #: channels in a group of the convolution that computes the filters; 4 in ELSA-Swin-T
    mul: int = 0  #: exponent of the ghost head's multiplier; 0 omits it
    add: float = 1.0  #: factor of the ghost head's addend; 0 omits it
    strict: bool = False  #: use Eq. 7 as printed, not the form of the published models

    def __post_init__(self) -> None:
        check_odd("kernel", self.kernel)
        check_positive("heads", self.heads)
        if not 1 <= self.group_width <= 1024 or self.mul < 0:
            raise ValueError(f"group_width must be 1 to 1024 and mul 0 or more, not {self.group_width} and {self.mul}")


@dataclass(frozen=True)
class LocalOptions:
    """Options of `lsa`; the defaults are Swin's attention."""

    network: Network = "swin"  #: network of Table 1, which selects the terms of Eq. 4
    area: Literal["window", "neighborhood"] = "window"  #: the pixels that attend to each other
    size: int = 7  #: height and width of the area
    #: shift of the windows, or `host` for the host's; 0 by default, and required where the host shifts its windows
    shift: int | Literal["host"] | None = None
    norm: Norm = "softmax"  #: norm of the scores
    heads: int | None = None  #: number of heads; by default the host's

    def __post_init__(self) -> None:
        check_positive("heads", self.heads)
        if self.size > 255:
            raise ValueError(f"size must be at most 255, not {self.size}")
        if self.area == "neighborhood":
            check_odd("size of a neighborhood", self.size)
            if self.shift:
                raise ValueError("shift is for windows only; use area=window or shift=0")
            object.__setattr__(self, "shift", 0)
        if self.size < 1 or (isinstance(self.shift, int) and not 0 <= self.shift < self.size):
            raise ValueError(f"shift must be less than size, not {self.shift} and {self.size}")


@dataclass(frozen=True)
class InvolutionOptions:
    """Options of `involution`."""

    kernel: int = 7  #: height and width of a neighborhood, odd
    heads: int | None = None  #: number of groups of channels that share a filter; by default the host's heads

    def __post_init__(self) -> None:
        check_odd("kernel", self.kernel)
        check_positive("heads", self.heads)


@dataclass(frozen=True)
class DepthwiseOptions(InvolutionOptions):
    """Options of `dwconv`."""

    heads: int | None = None  #: number of groups of channels that share a filter; by default one per channel


@dataclass(frozen=True)
class DynamicOptions:
    """Options of `dynamic_dwconv`."""

    kernel: int = 7  #: height and width of a neighborhood, odd
    reduction: int = 4  #: number of channels divided by the squeezed width

    def __post_init__(self) -> None:
        check_odd("kernel", self.kernel)
        check_positive("reduction", self.reduction)


@dataclass(frozen=True)
class DecoupledOptions:
    """Options of `ddf`."""

    kernel: int = 7  #: height and width of a neighborhood, odd
    squeeze: float = 0.2  #: squeezed width divided by the number of channels

    def __post_init__(self) -> None:
        check_odd("kernel", self.kernel)
        if not 0 < self.squeeze <= 1:
            raise ValueError(f"squeeze must be in (0, 1], not {self.squeeze:g}")


@dataclass(frozen=True)
class OutlookOptions:
    """Options of `outlooker`; the defaults are VOLO's."""

    kernel: int = 3  #: height and width of a neighborhood, odd
    stride: int = 2  #: distance between neighborhoods, in pixels
    heads: int | None = None  #: number of heads; by default the host's

    def __post_init__(self) -> None:
        check_odd("kernel", self.kernel)
        check_positive("heads", self.heads)
        if not 1 <= self.stride <= self.kernel:
            raise ValueError(f"stride must be between 1 and kernel, so that every pixel is covered, not {self.stride}")


@dataclass(frozen=True)
class GhostOptions:
    """Options of `ghost`."""

    parts: int = 2  #: ghost heads per head
    mul: int = 1  #: exponent of the multiplier; 0 omits it
    add: float = 1.0  #: factor of the addend; 0 omits it
    identity: bool = False  #: start with mul 1 and add 0, so a pretrained host is unchanged

    def __post_init__(self) -> None:
        if self.parts < 1 or self.mul < 0:
            raise ValueError(f"parts must be 1 or more and mul 0 or more, not {self.parts} and {self.mul}")
        if not (self.mul or self.add):
            raise ValueError("mul and add are both 0, which disables the ghost head; set at least one of them")


class GhostType(GraftType[GhostOptions]):
    """The graft type `ghost`."""

    name = "ghost"
    summary = "the ghost head on attention maps: several maps from each, by static matrices of relative positions"
    source = f"{_PAPER}, Eq. 8, Table 11"
    Options = GhostOptions

    def hook_points(self, options: GhostOptions) -> tuple[HookPoint, ...]:
        return ("weights",)

    def build(self, geometry: Geometry, hook_point: HookPoint, options: GhostOptions) -> Graft:
        site = attention_geometry(geometry)
        grid = site.window or site.grid
        if grid is None:
            raise TypeError("this graft needs a grid; see `refusal`")
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
        site = attention_geometry(geometry)
        grid = site.window or site.grid
        if not site.own_keys:
            return (
                "its queries and keys are different tokens, so a key has no position relative to a query; name other sites "
                "with @"
            )
        if grid is None or site.tokens != site.prefix_tokens + grid[0] * grid[1]:
            return "its tokens are not on a grid of known size; name other sites with @"
        if site.talking:
            return "its heads are mixed after the softmax, so their number cannot change; name other sites with @"
        if site.value_width % options.parts:
            return (
                f"the {site.value_width} channels of a head are not divisible by parts={options.parts}; change parts="
            )
        return None

    def starts_as_identity(self, options: GhostOptions) -> bool:
        return options.identity


TYPES = [
    register_graft(each)
    for each in (
        SpaceType(
            "elsa",
            "Hadamard attention with the ghost head, in place of a block's attention",
            "Eqs. 7 and 8",
            ElsaOptions,
            lambda dim, heads, options: ElsaGraft(
                dim,
                heads,
                kernel_size=options.kernel,
                group_width=options.group_width,
                lam=options.mul,
                gamma=options.add,
                strict=options.strict,
            ),
        ),
        LocalType(
            "lsa",
            "local self-attention of the paper's family (Eq. 4): terms, windows or neighborhoods, norm",
            "Eq. 4, Tables 1 to 3",
            LocalOptions,
            lambda dim, heads, options: LocalGraft(
                dim,
                heads,
                terms=NETWORKS[options.network],
                area=options.area,
                size=options.size,
                shift=options.shift,
                norm=options.norm,
            ),
        ),
        SpaceType(
            "involution",
            "filters that each pixel generates from itself alone, without a norm",
            "Eq. 2",
            InvolutionOptions,
            lambda dim, heads, options: LocalGraft(
                dim, heads, terms=NETWORKS["net2"], size=options.kernel, norm="identity"
            ),
        ),
        SpaceType(
            "dwconv",
            "a depthwise convolution between two linear maps",
            "Table 5, Figure 2",
            DepthwiseOptions,
            lambda dim, heads, options: DepthwiseGraft(dim, heads=options.heads, kernel_size=options.kernel),
        ),
        SpaceType(
            "dynamic_dwconv",
            "a depthwise convolution with filters from the image's mean",
            "Table 5",
            DynamicOptions,
            lambda dim, heads, options: DynamicGraft(dim, kernel_size=options.kernel, reduction=options.reduction),
        ),
        SpaceType(
            "ddf",
            "decoupled dynamic filters: one per pixel times one per channel and image",
            "Table 5",
            DecoupledOptions,
            lambda dim, heads, options: DecoupledGraft(dim, kernel_size=options.kernel, squeeze=options.squeeze),
        ),
        SpaceType(
            "outlooker",
            "outlook attention (VOLO): windows weighted by their center, summed where they overlap",
            "Table 5; timm's OutlookAttention",
            OutlookOptions,
            lambda dim, heads, options: OutlookGraft(
                dim, heads, kernel_size=options.kernel, padding=options.kernel // 2, stride=options.stride
            ),
        ),
        GhostType(),
    )
]
