"""The grafts of horizontal and vertical attention."""

from dataclasses import dataclass

from attngraft.attention import Geometry, Graft, GraftType, HookPoint
from attngraft.mechanisms.common import attention_geometry, check_positive
from attngraft.mechanisms.horizontal_vertical import layer
from attngraft.mechanisms.registry import register_graft


class HorizontalGraft(layer.HorizontalAttention, Graft):
    """`HorizontalAttention` as a graft."""


class VerticalGraft(layer.VerticalAttention, Graft):
    """`VerticalAttention` as a graft."""


@dataclass(frozen=True)
class HorizontalOptions:
    """Options of `horizontal`."""

    identity: bool = False  #: weight by H alpha, with zero scores at first, so a pretrained host is unchanged


@dataclass(frozen=True)
class VerticalOptions:
    """Options of `vertical`."""

    reduction: int = 4  #: C divided by the squeezed width
    identity: bool = False  #: gate by 2 beta, with beta = 1/2 at first, so a pretrained host is unchanged

    def __post_init__(self) -> None:
        check_positive("reduction", self.reduction)


class HorizontalType(GraftType[HorizontalOptions]):
    """The graft type `horizontal`."""

    name = "horizontal"
    summary = "horizontal attention: the heads of each token weighted by a softmax over heads"
    source = "Horizontal and Vertical Attention in Transformers, Eqs. 5 and 6"
    Options = HorizontalOptions

    def hook_points(self, options: HorizontalOptions) -> tuple[HookPoint, ...]:
        return ("heads",)

    def build(self, geometry: Geometry, hook_point: HookPoint, options: HorizontalOptions) -> Graft:
        return HorizontalGraft(
            geometry.dim, attention_geometry(geometry).value_width, identity=options.identity, init=geometry.init
        )

    def starts_as_identity(self, options: HorizontalOptions) -> bool:
        return options.identity

    def notes(self, geometry: Geometry, hook_point: HookPoint, options: HorizontalOptions) -> tuple[str, ...]:
        heads = attention_geometry(geometry).heads
        if heads == 1:
            return ("with a single head alpha is 1: there is nothing to learn",)
        if options.identity:
            return ()
        return (f"starts by dividing the heads by about {heads}; identity=true starts as the identity",)

    def inert_parameters(self, geometry: Geometry, hook_point: HookPoint, options: HorizontalOptions) -> frozenset[str]:
        if attention_geometry(geometry).heads == 1:
            return frozenset({"head.weight", "context.weight", "score.weight", "score.bias"})
        return frozenset({"score.bias"})


class VerticalType(GraftType[VerticalOptions]):
    """The graft type `vertical`."""

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
        return () if options.identity else ("starts by halving the branch; identity=true starts as the identity",)


HORIZONTAL = register_graft(HorizontalType())
VERTICAL = register_graft(VerticalType())
