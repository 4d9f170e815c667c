"""The grafts of context broadcasting, and two from the paper's comparisons: `se` and `uniform_heads`."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from attngraft.attention import Geometry, Graft, GraftType, HookPoint, LinearLayer, Unused
from attngraft.mechanisms.common import attention_geometry, check_positive
from attngraft.mechanisms.context_broadcast import layer, ops
from attngraft.mechanisms.context_broadcast.reference import Context
from attngraft.mechanisms.registry import register_graft


class ContextBroadcastGraft(layer.ContextBroadcast, Graft):
    """`ContextBroadcast` as a graft."""

    def fold(self, *, before: LinearLayer | None, after: LinearLayer | None) -> Graft | str:
        """Fold the factor 1/2 into an adjacent linear layer.

        (x + context) / 2 is y + context of y with y = x / 2. The factor is folded into weight and bias of the layer before,
        or into the weight alone of the layer after. What remains is x + context, CB_S with Lambda = 1.
        """
        if self.prefix_tokens:
            return "it leaves the prefix tokens unchanged, but a factor in a linear layer would halve those too"
        linear = before or after
        if linear is None:
            return "there is no linear layer next to it"
        with torch.no_grad():
            linear.weight.mul_(0.5)
            if before is not None and before.bias is not None:
                before.bias.mul_(0.5)
        rest = ScaledContextBroadcastGraft(
            linear.weight.shape[0 if before is not None else 1],
            init=1.0,
            context=self.context,
            device=linear.weight.device,
            dtype=linear.weight.dtype,
        )
        rest.scale.requires_grad_(False)
        rest.kind, rest.options = "cb_s", {**self.options, "init": 1.0}
        side = "before" if before is not None else "after"
        rest.folded = f"the half of {self.kind} is folded into the weights of the linear layer {side} it"
        return rest


class ScaledContextBroadcastGraft(layer.ScaledContextBroadcast, Graft):
    """`ScaledContextBroadcast` as a graft."""


class ContextGateGraft(layer.ContextGate, Graft):
    """`ContextGate` as a graft."""


class ContextHybridGraft(layer.ContextHybrid, Graft):
    """`ContextHybrid` as a graft."""


class SqueezeExcitationGraft(layer.SqueezeExcitation, Graft):
    """`SqueezeExcitation` as a graft."""


class UniformHeadsGraft(Graft):
    """Make the last heads of an attention map uniform over the keys visible to each query."""

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
    """Where a block is grafted, and which tokens are averaged and changed."""

    at: Literal["mlp", "attention", "both"] = "mlp"  #: branch of the block that is grafted
    position: Literal["front", "mid", "end"] = "end"  #: in the MLP: before fc1, after the activation, after fc2
    scope: Literal["image", "window"] = "image"  #: tokens averaged into the context, for windowed attention
    tokens: Literal["all", "patches"] = "all"  #: `patches` excludes prefix tokens (class token, registers)

    def __post_init__(self) -> None:
        if self.at == "attention" and self.position != "end":
            raise ValueError(
                f"position={self.position} is in the MLP, but at=attention does not change the MLP; use at=mlp"
            )
        if self.at == "mlp" and self.scope != "image":
            raise ValueError("scope=window requires windows, and MLPs have none; use at=attention or at=both")

    def hook_points(self) -> tuple[HookPoint, ...]:
        mlp: dict[str, HookPoint] = {"front": "mlp.front", "mid": "mlp.mid", "end": "mlp.end"}
        attention: HookPoint = "attn.end" if self.scope == "image" else "attn.window"
        return {"mlp": (mlp[self.position],), "attention": (attention,), "both": (attention, mlp[self.position])}[
            self.at
        ]

    def prefix(self, geometry: Geometry) -> int:
        """Return the number of leading tokens that are excluded."""
        return geometry.prefix_tokens if self.tokens == "patches" else 0


@dataclass(frozen=True)
class ContextOptions(PlaceOptions):
    context: Context = "mean"  #: the token that is broadcast


@dataclass(frozen=True)
class ScaledOptions(ContextOptions):
    init: float = 0.0  #: initial value of every Lambda; 0 leaves the host unchanged


class ContextType(GraftType[Any]):
    """Graft type of one of the four forms; `layer(width, prefix, options)` builds its module."""

    def __init__(
        self, name: str, summary: str, source: str, options: type, layer: Callable[[int, int, Any], Graft]
    ) -> None:
        self.name, self.summary, self.source, self.Options = name, summary, f"Context Broadcasting, {source}", options
        self.layer = layer

    def hook_points(self, options: PlaceOptions) -> tuple[HookPoint, ...]:
        return options.hook_points()

    def build(self, geometry: Geometry, hook_point: HookPoint, options: PlaceOptions) -> Graft:
        return self.layer(geometry.width(hook_point), options.prefix(geometry), options)

    def refusal(self, geometry: Geometry, hook_point: HookPoint, options: PlaceOptions) -> str | None:
        if getattr(options, "context", "class") == "class" and not geometry.class_token:
            return "it has no class token to broadcast; use cb or cb_s with context=mean or max"
        if options.prefix(geometry) and _tokens(geometry, hook_point) == options.prefix(geometry):
            return "it has only prefix tokens, and tokens=patches excludes them; name other sites with @"
        return refuse_mixing(geometry)

    def starts_as_identity(self, options: PlaceOptions) -> bool:
        return isinstance(options, ScaledOptions) and options.init == 0

    def notes(self, geometry: Geometry, hook_point: HookPoint, options: PlaceOptions) -> tuple[str, ...]:
        if _tokens(geometry, hook_point) == 1:
            return ("there is a single token, so the context is that token itself",)
        if self.name == "cb":
            return ("never the identity: it halves each token's distance to the context; fine-tune a pretrained host",)
        return ()


def _tokens(geometry: Geometry, hook_point: HookPoint) -> int | None:
    """Return the number of tokens of an input at `hook_point`, over all windows; None if unknown."""
    shape = geometry.shape(hook_point)
    return None if shape is None else math.prod(shape[:-1])


def refuse_mixing(geometry: Geometry) -> str | None:
    """Return why tokens cannot be averaged at a site; None if they can."""
    if geometry.causal:
        return (
            "its tokens must not see later ones, but this graft averages over all tokens; use horizontal or vertical, which "
            "do not mix tokens"
        )
    if geometry.padded:
        return (
            "its batches contain padding, which would be included in the average; use horizontal or vertical, which do not "
            "mix tokens"
        )
    return None


@dataclass(frozen=True)
class SqueezeExcitationOptions:
    """Options of `se`."""

    reduction: int = 16  #: the hidden width is C // reduction
    bias: bool = False  #: whether both linear layers have a bias

    def __post_init__(self) -> None:
        check_positive("reduction", self.reduction)


class SqueezeExcitationType(GraftType[SqueezeExcitationOptions]):
    """The graft type `se`."""

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
    """Options of `uniform_heads`."""

    count: int = 1  #: number of uniform heads, counted from the last head
    #: output of the uniform heads: the average of their values, or CB of their values
    value: Literal["average", "cb"] = "average"

    def __post_init__(self) -> None:
        check_positive("count", self.count)


class UniformHeadsType(GraftType[UniformHeadsOptions]):
    """The graft type `uniform_heads`."""

    name = "uniform_heads"
    summary = "the last heads attend uniformly to all visible tokens; their q and k rows stay in the host, unused"
    source = "Context Broadcasting, Table 1 (Replc.)"
    Options = UniformHeadsOptions

    def hook_points(self, options: UniformHeadsOptions) -> tuple[HookPoint, ...]:
        return ("weights",)

    def refusal(self, geometry: Geometry, hook_point: HookPoint, options: UniformHeadsOptions) -> str | None:
        site = attention_geometry(geometry)
        if options.count > site.heads:
            return f"it has {site.heads} heads; use count={site.heads} or less"
        if options.value == "cb" and not site.own_keys:
            return (
                "its queries and keys are different tokens, so a head cannot apply CB to its values; use value=average, or "
                "name other sites with @"
            )
        return None

    def build(self, geometry: Geometry, hook_point: HookPoint, options: UniformHeadsOptions) -> Graft:
        return UniformHeadsGraft(count=options.count, keep_half=options.value == "cb")

    def unused(self, geometry: Geometry, hook_point: HookPoint, options: UniformHeadsOptions) -> Unused:
        site = attention_geometry(geometry)
        kept = site.heads - options.count
        rows = (*site.head_rows("q", kept, site.heads), *site.head_rows("k", kept, site.heads))
        if kept == 0:
            return Unused(parameters=site.query_key_parameters, rows=rows)
        rows = (*rows, *((name, kept, site.heads) for name in site.score_rows))
        columns = tuple((name, kept, site.heads) for name in site.score_columns)
        return Unused(rows=rows, columns=columns)

    def notes(self, geometry: Geometry, hook_point: HookPoint, options: UniformHeadsOptions) -> tuple[str, ...]:
        rows = [block for role in ("q", "k") for block in attention_geometry(geometry).rows.get(role, ())]
        saved = sum(options.count * block.width * sum(block.parameters.values()) for block in rows)
        return (
            f"Table 1 counts a model without the unused q and k rows: {saved:,} parameters fewer at this site "
            "(build one with attn_layer=UniformHeadAttention)",
        )


TYPES = [
    register_graft(each)
    for each in (
        ContextType(
            "cb",
            "context broadcasting: each token moves halfway to the mean token (or max, class token); no parameters",
            "Eq. 1, Table 10",
            ContextOptions,
            lambda width, prefix, options: ContextBroadcastGraft(context=options.context, prefix_tokens=prefix),
        ),
        ContextType(
            "cb_s",
            "scaled context broadcasting: adds Lambda * mean token, a learned Lambda per channel; starts as the identity",
            "Sec. 2.2, Fig. 6",
            ScaledOptions,
            lambda width, prefix, options: ScaledContextBroadcastGraft(
                width, init=options.init, context=options.context, prefix_tokens=prefix
            ),
        ),
        ContextType(
            "cb_gate",
            "multiplies each token by (class token + 1); no parameters",
            "Appendix B.6, Table 13",
            PlaceOptions,
            lambda width, prefix, options: ContextGateGraft(prefix_tokens=prefix),
        ),
        ContextType(
            "cb_hybrid",
            "context broadcasting plus each token times the class token; no parameters",
            "Appendix B.6, Table 13",
            PlaceOptions,
            lambda width, prefix, options: ContextHybridGraft(prefix_tokens=prefix),
        ),
        SqueezeExcitationType(),
        UniformHeadsType(),
    )
]
