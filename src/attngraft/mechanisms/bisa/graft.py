"""Bi-directional attention and its inverse half as grafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from attngraft.attention import AttentionGeometry, Geometry, Graft, GraftType, HookPoint, LinearLayer, Unused
from attngraft.mechanisms.bisa.maps import TokenMap
from attngraft.mechanisms.bisa.mix import BidirectionalMix
from attngraft.mechanisms.bisa.variant import Transform, Variant
from attngraft.mechanisms.registry import register_graft

WHOLE_SET = (
    "the softmax over queries sees the whole set of tokens: image size, padding and dropped tokens change every output"
)


class BidirectionalGraft(BidirectionalMix, Graft):
    """`BidirectionalMix` at a site."""

    @property
    def adds_after(self) -> bool:  # type: ignore[override]
        """`separate` has an output projection of its own."""
        return self.own is not None

    def fold(self, *, before: LinearLayer | None, after: LinearLayer | None) -> Graft | str | None:
        """Its own batch norms go into its own linear maps, as those of a host that has them go into the host's."""
        maps = [module for module in self.modules() if isinstance(module, TokenMap) and module.norm is not None]
        if not maps:
            return super().fold(before=before, after=after)
        for each in maps:
            each.absorb_norm()
        self.folded = "its batch norms stand in its linear maps"
        return self


@dataclass(frozen=True)
class BisaOptions(Variant):
    """What `bisa` leaves open."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight == 1:
            raise ValueError("weight=1 is the host's own attention, beside an inverse branch that nothing uses")


@dataclass(frozen=True)
class MisaOptions:
    """What `misa` leaves open."""

    norm: bool = False  #: what comes out is normalized over the tokens, channel by channel
    transform: Transform = "hyper"  #: of the query by a value: the hypernetwork, or an MLP of equal size (the ablation)

    def variant(self) -> Variant:
        """The same as a form of BiSA: lambda = 0."""
        return Variant(weight=0.0, norm=self.norm, transform=self.transform)


OptionsT = TypeVar("OptionsT", BisaOptions, MisaOptions)


class _BidirectionalType(GraftType[OptionsT]):
    """What both share."""

    def variant(self, options: OptionsT) -> Variant:
        return options.variant() if isinstance(options, MisaOptions) else options

    def hook_points(self, options: OptionsT) -> tuple[HookPoint, ...]:
        return ("mix",)

    def build(self, geometry: Geometry, hook_point: HookPoint, options: OptionsT) -> Graft:
        site = _attention(geometry)
        return BidirectionalGraft(
            site.dim,
            site.heads,
            key_dim=site.key_width,
            value_dim=site.value_width,
            out_dim=site.width("tokens"),
            variant=self.variant(options),
            projection=site.projection,
            init=site.init,
        )

    def refusal(self, geometry: Geometry, hook_point: HookPoint, options: OptionsT) -> str | None:
        site, order = _attention(geometry), self.variant(options).order
        if site.causal:
            return (
                "its tokens must not see later ones, and the softmax over queries does; horizontal and vertical mix no "
                "tokens"
            )
        if site.padded:
            return (
                "its batches hold padding, whose queries would take their share of every key; horizontal and vertical mix "
                "no tokens"
            )
        if site.cross:
            return "its keys come from other tokens than its queries; choose sites of self-attention"
        if site.query_tokens is not None:
            return (
                "its query side has fewer tokens than its key side (it subsamples), which the paper never replaces; choose "
                "other sites"
            )
        if site.key_tokens is not None:
            return (
                "its key side has fewer tokens than its query side (keys are subsampled), and the paper's inverse branch "
                "has one query for each key; choose other sites"
            )
        if order != "parallel" and site.heads * site.value_width != site.dim:
            return (
                f"order={order} sends the merged heads through the projections again, and {site.heads} heads of width "
                f"{site.value_width} do not make the width {site.dim}; use order=parallel"
            )
        return None

    def unused(self, geometry: Geometry, hook_point: HookPoint, options: OptionsT) -> Unused:
        """Without self-attention the rows that make the host's values."""
        site = _attention(geometry)
        return Unused() if self.variant(options).attends else Unused(rows=site.head_rows("v", 0, site.heads))

    def notes(self, geometry: Geometry, hook_point: HookPoint, options: OptionsT) -> tuple[str, ...]:
        grid, window = geometry.grid, _attention(geometry).window
        if grid is None or window is None or not any(side % each for side, each in zip(grid, window, strict=True)):
            return (WHOLE_SET,)
        (rows, columns), (high, wide) = grid, window
        return (
            WHOLE_SET,
            f"a map of {rows} x {columns} does not divide into windows of {high} x {wide}, and the host fills them up with "
            "zeros: these take no part in the inverse branch; the host's own attention sees them as ever",
        )

    def inert_parameters(self, geometry: Geometry, hook_point: HookPoint, options: OptionsT) -> frozenset[str]:
        site, variant = _attention(geometry), self.variant(options)
        if site.tokens == 1 and variant.norm:  # a single token is its own mean
            return frozenset(name for name, _ in self.build(geometry, hook_point, options).named_parameters())
        if not variant.separate:
            return frozenset()
        own = {"own.query.norm.bias"} if site.projection.norm else {"own.query.linear.bias"}
        if site.tokens == 1:  # both softmaxes are 1
            own = {f"own.{side}.{name}" for side in ("query", "key") for name in _names(site)}
        return frozenset(own)


class BisaType(_BidirectionalType[BisaOptions]):
    """`bisa`."""

    name = "bisa"
    summary = (
        "bi-directional attention: self-attention and its inverse, each query transformed by what its keys share out"
    )
    source = "Bi-Directional Self-Attention for Vision Transformers, Eqs. 1 to 3"
    Options = BisaOptions

    def starts_as_identity(self, options: BisaOptions) -> bool:
        return options.identity

    def notes(self, geometry: Geometry, hook_point: HookPoint, options: BisaOptions) -> tuple[str, ...]:
        found = list(super().notes(geometry, hook_point, options))
        norm = _attention(geometry).projection.norm is not None
        if options.identity:
            start = "norm behind the branch's own projection" if norm and options.separate else "hypernetwork"
            found.append(f"identity=true is ours: the paper's equation divided by lambda, with a zero {start}")
        if norm and options.order != "parallel":
            found.append(
                f"order={options.order} sends two kinds of tokens through each batch norm, and the running statistics blend "
                "both: evaluation normalizes differently from training"
            )
        if options.separate:
            found.append(
                "separate=true is one reading of the two further maps per layer that the paper's counts for LeViT ask for"
            )
        return tuple(found)


class MisaType(_BidirectionalType[MisaOptions]):
    """`misa`."""

    name = "misa"
    summary = "the inverse branch of bi-directional attention alone, in the place of self-attention"
    source = "Bi-Directional Self-Attention for Vision Transformers, Eq. 2"
    Options = MisaOptions

    def notes(self, geometry: Geometry, hook_point: HookPoint, options: MisaOptions) -> tuple[str, ...]:
        return (
            *super().notes(geometry, hook_point, options),
            "the host's value map stays in the model without use; the paper counts its parameters too",
        )


def _names(site: AttentionGeometry) -> tuple[str, ...]:
    """Parameters of a map, by the host's kind of projection."""
    bias = ("linear.bias",) if site.projection.bias else ()
    norm = ("norm.weight", "norm.bias") if site.projection.norm else ()
    return ("linear.weight", *bias, *norm)


def _attention(geometry: Geometry) -> AttentionGeometry:
    if not isinstance(geometry, AttentionGeometry):
        raise TypeError(f"heads are formed at attention sites, and this is a {type(geometry).__name__}")
    return geometry


BISA = register_graft(BisaType())
MISA = register_graft(MisaType())
