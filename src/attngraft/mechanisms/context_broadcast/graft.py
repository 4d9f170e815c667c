"""Context broadcasting as grafts, and what the paper compares it with (`se`) or starts from (`uniform_heads`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from attngraft.attention import AttentionGeometry, Geometry, Graft, GraftType, HookPoint, LinearLayer, Unused
from attngraft.mechanisms.context_broadcast import layer, ops
from attngraft.mechanisms.context_broadcast.reference import Context
from attngraft.mechanisms.registry import register_graft


class ContextBroadcastGraft(layer.ContextBroadcast, Graft):
    """`ContextBroadcast` at a site."""

    def fold(self, *, before: LinearLayer | None, after: LinearLayer | None) -> Graft | str:
        """(x + context) / 2 is y + context of y with y = x / 2, so the half can go into the layer before, weight and bias;
        into the layer after it goes as a factor of the weight alone. x + context is left: CB_S with Lambda = 1."""
        if self.prefix_tokens:
            return "it leaves the prefix tokens as they are, and a factor in a linear layer would halve those too"
        layer = before or after
        if layer is None:
            return "no linear layer stands next to it"
        with torch.no_grad():
            layer.weight.mul_(0.5)
            if before is not None and before.bias is not None:
                before.bias.mul_(0.5)
        width = layer.weight.shape[0 if before is not None else 1]
        left = ScaledContextBroadcastGraft(
            width, init=1.0, context=self.context, device=layer.weight.device, dtype=layer.weight.dtype
        )
        left.scale.requires_grad_(False)
        left.kind, left.options = "cb_s", {**self.options, "init": 1.0}
        side = "before" if before is not None else "after"
        left.folded = f"the half of {self.kind} stands in the weights of the linear layer {side} it"
        return left


class ScaledContextBroadcastGraft(layer.ScaledContextBroadcast, Graft):
    """`ScaledContextBroadcast` at a site."""


class ContextGateGraft(layer.ContextGate, Graft):
    """`ContextGate` at a site."""


class ContextHybridGraft(layer.ContextHybrid, Graft):
    """`ContextHybrid` at a site."""


class SqueezeExcitationGraft(layer.SqueezeExcitation, Graft):
    """`SqueezeExcitation` at a site."""


class UniformHeadsGraft(Graft):
    """Makes the last heads of an attention map uniform over the keys that each query may see."""

    def __init__(self, *, count: int, keep_half: bool) -> None:
        super().__init__()
        self.count = count
        self.keep_half = keep_half

    def forward(self, weights: Tensor, visible: Tensor | None) -> Tensor:
        return ops.uniform_weights(weights, visible, count=self.count, keep_half=self.keep_half)

    def extra_repr(self) -> str:
        return f"count={self.count}, keep_half={self.keep_half}"


@dataclass(frozen=True)
class PlaceOptions:
    """Where in a block; `scope` matters where attention has windows, `tokens` where there are prefix tokens."""

    at: Literal["mlp", "attention", "both"] = "mlp"  #: which branch of the block
    position: Literal["front", "mid", "end"] = "end"  #: in the MLP: before fc1, after the activation, after fc2
    scope: Literal["image", "window"] = "image"  #: attention with windows: over which tokens
    tokens: Literal["all", "patches"] = "all"  #: `patches` leaves class token and registers out

    def __post_init__(self) -> None:
        if self.at == "attention" and self.position != "end":
            raise ValueError(f"position={self.position} is a place in the MLP, and at=attention leaves the MLP alone")
        if self.at == "mlp" and self.scope != "image":
            raise ValueError("scope=window is for attention (at=attention or both); an MLP sees the whole map")

    def hook_points(self) -> tuple[HookPoint, ...]:
        mlp: dict[str, HookPoint] = {"front": "mlp.front", "mid": "mlp.mid", "end": "mlp.end"}
        attention: HookPoint = "attn.end" if self.scope == "image" else "attn.window"
        return {"mlp": (mlp[self.position],), "attention": (attention,), "both": (attention, mlp[self.position])}[
            self.at
        ]

    def prefix(self, geometry: Geometry) -> int:
        """How many leading tokens are left out."""
        return geometry.prefix_tokens if self.tokens == "patches" else 0


@dataclass(frozen=True)
class ContextOptions(PlaceOptions):
    context: Context = "mean"  #: the token that is broadcast


@dataclass(frozen=True)
class ScaledOptions(ContextOptions):
    init: float = 0.0  #: first value of every Lambda; 0 leaves the host as it is


OptionsT = TypeVar("OptionsT", bound=PlaceOptions)


class _ContextType(GraftType[OptionsT]):
    """What the four forms share: where they stand and what they refuse."""

    def hook_points(self, options: OptionsT) -> tuple[HookPoint, ...]:
        return options.hook_points()

    def refusal(self, geometry: Geometry, hook_point: HookPoint, options: OptionsT) -> str | None:
        if self.needs_class_token(options) and not geometry.class_token:
            return "it has no class token to broadcast; use cb or cb_s with context=mean or max"
        if options.prefix(geometry) and _tokens(geometry, hook_point) == options.prefix(geometry):
            return "only prefix tokens come here, and tokens=patches leaves them out; name other sites with @"
        return refuse_mixing(geometry)

    def notes(self, geometry: Geometry, hook_point: HookPoint, options: OptionsT) -> tuple[str, ...]:
        alone = _tokens(geometry, hook_point) == 1
        return ("a single token comes here, so the context is that token itself",) if alone else ()

    def needs_class_token(self, options: OptionsT) -> bool:
        return getattr(options, "context", "class") == "class"


def _tokens(geometry: Geometry, hook_point: HookPoint) -> int | None:
    """How many tokens of an input stand at `hook_point`, windows put together; None where that is not known."""
    shape = geometry.shape(hook_point)
    return None if shape is None else math.prod(shape[:-1])


def refuse_mixing(geometry: Geometry) -> str | None:
    """Why tokens cannot be averaged here."""
    if geometry.causal:
        return "its tokens must not see later ones, and this averages over all; horizontal and vertical mix no tokens"
    if geometry.padded:
        return "its batches hold padding, which would be averaged in; horizontal and vertical mix no tokens"
    return None


class ContextBroadcastType(_ContextType[ContextOptions]):
    """`cb`."""

    name = "cb"
    summary = "context broadcasting: each token moves halfway to the mean token (or max, class token); no parameters"
    source = "Context Broadcasting, Eq. 1, Table 10"
    Options = ContextOptions

    def build(self, geometry: Geometry, hook_point: HookPoint, options: ContextOptions) -> Graft:
        return ContextBroadcastGraft(context=options.context, prefix_tokens=options.prefix(geometry))

    def notes(self, geometry: Geometry, hook_point: HookPoint, options: ContextOptions) -> tuple[str, ...]:
        if alone := super().notes(geometry, hook_point, options):
            return alone
        return (
            "never the identity: it halves each token's distance to the context, so a pretrained host must be tuned",
        )


class ScaledContextBroadcastType(_ContextType[ScaledOptions]):
    """`cb_s`."""

    name = "cb_s"
    summary = (
        "scaled context broadcasting: adds Lambda * mean token, a learned Lambda per channel; starts as the identity"
    )
    source = "Context Broadcasting, Sec. 2.2, Fig. 6"
    Options = ScaledOptions

    def build(self, geometry: Geometry, hook_point: HookPoint, options: ScaledOptions) -> Graft:
        return ScaledContextBroadcastGraft(
            geometry.width(hook_point),
            init=options.init,
            context=options.context,
            prefix_tokens=options.prefix(geometry),
        )

    def starts_as_identity(self, options: ScaledOptions) -> bool:
        return options.init == 0


class ContextGateType(_ContextType[PlaceOptions]):
    """`cb_gate`."""

    name = "cb_gate"
    summary = "multiplies each token by (class token + 1); no parameters"
    source = "Context Broadcasting, Appendix B.6, Table 13"
    Options = PlaceOptions

    def build(self, geometry: Geometry, hook_point: HookPoint, options: PlaceOptions) -> Graft:
        return ContextGateGraft(prefix_tokens=options.prefix(geometry))


class ContextHybridType(_ContextType[PlaceOptions]):
    """`cb_hybrid`."""

    name = "cb_hybrid"
    summary = "context broadcasting plus each token times the class token; no parameters"
    source = "Context Broadcasting, Appendix B.6, Table 13"
    Options = PlaceOptions

    def build(self, geometry: Geometry, hook_point: HookPoint, options: PlaceOptions) -> Graft:
        return ContextHybridGraft(prefix_tokens=options.prefix(geometry))


@dataclass(frozen=True)
class SqueezeExcitationOptions:
    """What `se` leaves open."""

    reduction: int = 16  #: the hidden width is C // reduction
    bias: bool = False  #: of both linear layers

    def __post_init__(self) -> None:
        if self.reduction < 1:
            raise ValueError(f"reduction is at least 1, not {self.reduction}")


class SqueezeExcitationType(GraftType[SqueezeExcitationOptions]):
    """`se`."""

    name = "se"
    summary = "squeeze-and-excitation on tokens at the MLP's end: channels gated by the mean token"
    source = "Context Broadcasting, Tables 2 and 3 (as a comparison)"
    Options = SqueezeExcitationOptions

    def hook_points(self, options: SqueezeExcitationOptions) -> tuple[HookPoint, ...]:
        return ("mlp.end",)

    def refusal(self, geometry: Geometry, hook_point: HookPoint, options: SqueezeExcitationOptions) -> str | None:
        return refuse_mixing(geometry)

    def build(self, geometry: Geometry, hook_point: HookPoint, options: SqueezeExcitationOptions) -> Graft:
        return SqueezeExcitationGraft(
            geometry.width(hook_point), reduction=options.reduction, bias=options.bias, init=geometry.init
        )


@dataclass(frozen=True)
class UniformHeadsOptions:
    """What `uniform_heads` leaves open."""

    count: int = 1  #: how many heads, from the last
    value: Literal["average", "cb"] = "average"  #: what they put out: the average of the values, or `cb` of them

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count is at least 1, not {self.count}")


class UniformHeadsType(GraftType[UniformHeadsOptions]):
    """`uniform_heads`."""

    name = "uniform_heads"
    summary = "the last heads attend to all visible tokens alike; their q and k rows stay in the host, unused"
    source = "Context Broadcasting, Table 1 (Replc.)"
    Options = UniformHeadsOptions

    def hook_points(self, options: UniformHeadsOptions) -> tuple[HookPoint, ...]:
        return ("weights",)

    def refusal(self, geometry: Geometry, hook_point: HookPoint, options: UniformHeadsOptions) -> str | None:
        heads = _attention(geometry).heads
        if options.count > heads:
            return f"it has {heads} heads; use count={heads} or less"
        if options.value == "cb" and not _attention(geometry).own_keys:
            return (
                "its queries are not its keys, so a head cannot do CB on its values; use value=average, or name other "
                "sites with @"
            )
        return None

    def build(self, geometry: Geometry, hook_point: HookPoint, options: UniformHeadsOptions) -> Graft:
        return UniformHeadsGraft(count=options.count, keep_half=options.value == "cb")

    def unused(self, geometry: Geometry, hook_point: HookPoint, options: UniformHeadsOptions) -> Unused:
        site = _attention(geometry)
        kept = site.heads - options.count
        rows = (*site.head_rows("q", kept, site.heads), *site.head_rows("k", kept, site.heads))
        if kept == 0:
            return Unused(parameters=site.query_key_parameters, rows=rows)
        rows = (*rows, *((name, kept, site.heads) for name in site.score_rows))
        columns = tuple((name, kept, site.heads) for name in site.score_columns)
        return Unused(rows=rows, columns=columns)

    def notes(self, geometry: Geometry, hook_point: HookPoint, options: UniformHeadsOptions) -> tuple[str, ...]:
        rows = [block for role in ("q", "k") for block in _attention(geometry).rows.get(role, ())]
        saved = sum(options.count * block.width * sum(block.parameters.values()) for block in rows)
        return (
            f"Table 1 counts a model without the unused q and k rows: {saved:,} parameters fewer at this site "
            "(build one with attn_layer=UniformHeadAttention)",
        )


def _attention(geometry: Geometry) -> AttentionGeometry:
    if not isinstance(geometry, AttentionGeometry):
        raise TypeError(f"heads are made uniform at attention sites, and this is a {type(geometry).__name__}")
    return geometry


GRAFTS: tuple[GraftType[Any], ...] = tuple(
    register_graft(graft_type)
    for graft_type in (
        ContextBroadcastType(),
        ScaledContextBroadcastType(),
        ContextGateType(),
        ContextHybridType(),
        SqueezeExcitationType(),
        UniformHeadsType(),
    )
)
