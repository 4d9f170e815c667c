"""Horizontal and vertical attention as grafts."""

from __future__ import annotations

from dataclasses import dataclass

from attngraft.attention import AttentionGeometry, Geometry, Graft, GraftType, HookPoint
from attngraft.mechanisms.horizontal_vertical import layer
from attngraft.mechanisms.registry import register_graft


class HorizontalGraft(layer.HorizontalAttention, Graft):
    """`HorizontalAttention` at a site."""


class VerticalGraft(layer.VerticalAttention, Graft):
    """`VerticalAttention` at a site."""


@dataclass(frozen=True)
class HorizontalOptions:
    """What `horizontal` leaves open."""

    identity: bool = False  #: weigh by H alpha with a zero score, so that a pretrained host starts unchanged


@dataclass(frozen=True)
class VerticalOptions:
    """What `vertical` leaves open."""

    reduction: int = 4  #: C over the squeezed width
    identity: bool = False  #: gate by 2 beta with beta 1/2 at first, so that a pretrained host starts unchanged

    def __post_init__(self) -> None:
        if self.reduction < 1:
            raise ValueError(f"reduction is at least 1, not {self.reduction}")


class HorizontalType(GraftType[HorizontalOptions]):
    """`horizontal`."""

    name = "horizontal"
    summary = "horizontal attention: the heads of each token weighed by a softmax over heads"
    source = "Horizontal and Vertical Attention in Transformers, Eqs. 5 and 6"
    Options = HorizontalOptions

    def hook_points(self, options: HorizontalOptions) -> tuple[HookPoint, ...]:
        return ("heads",)

    def build(self, geometry: Geometry, hook_point: HookPoint, options: HorizontalOptions) -> Graft:
        return HorizontalGraft(
            geometry.dim, _attention(geometry).value_width, identity=options.identity, init=geometry.init
        )

    def starts_as_identity(self, options: HorizontalOptions) -> bool:
        return options.identity

    def notes(self, geometry: Geometry, hook_point: HookPoint, options: HorizontalOptions) -> tuple[str, ...]:
        heads = _attention(geometry).heads
        if heads == 1:
            return ("with a single head alpha is 1: nothing here can be learned",)
        if options.identity:
            return ()
        return (f"starts by dividing the heads by about {heads}; identity=true starts from the host",)

    def inert_parameters(self, geometry: Geometry, hook_point: HookPoint, options: HorizontalOptions) -> frozenset[str]:
        if _attention(geometry).heads == 1:
            return frozenset({"head.weight", "context.weight", "score.weight", "score.bias"})
        return frozenset({"score.bias"})


class VerticalType(GraftType[VerticalOptions]):
    """`vertical`."""

    name = "vertical"
    summary = "vertical attention: the channels of each token gated by a sigmoid, after the output projection"
    source = "Horizontal and Vertical Attention in Transformers, Eqs. 7 and 8"
    Options = VerticalOptions

    def hook_points(self, options: VerticalOptions) -> tuple[HookPoint, ...]:
        return ("tokens",)

    def build(self, geometry: Geometry, hook_point: HookPoint, options: VerticalOptions) -> Graft:
        width = geometry.width(hook_point)
        return VerticalGraft(
            width,
            hidden=max(1, width // options.reduction),
            context_dim=geometry.dim,
            identity=options.identity,
            init=geometry.init,
        )

    def starts_as_identity(self, options: VerticalOptions) -> bool:
        return options.identity

    def notes(self, geometry: Geometry, hook_point: HookPoint, options: VerticalOptions) -> tuple[str, ...]:
        return () if options.identity else ("starts by halving the branch; identity=true starts from the host",)


def _attention(geometry: Geometry) -> AttentionGeometry:
    if not isinstance(geometry, AttentionGeometry):
        raise TypeError(f"heads are weighed at attention sites, and this is a {type(geometry).__name__}")
    return geometry


HORIZONTAL = register_graft(HorizontalType())
VERTICAL = register_graft(VerticalType())
