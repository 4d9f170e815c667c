"""The two sentences, spelled out once. A host adapter's patched class inherits one and supplies its verbs.

A grafted site is the host's own module whose class was swapped for a patched subclass. So everything here must work on a
module that was never constructed by our `__init__`: state lives in `self.grafts` (set by the installer) or nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.attention.graft import LinearLayer
from attngraft.attention.hook_points import HookPoint
from attngraft.attention.mixing import MixContext, Mixed, Projected
from attngraft.attention.recorder import Recordable


def is_graft(name: str) -> bool:
    """Whether the parameter, buffer or module of this dotted name is a graft's, not the host's."""
    return ".grafts." in f".{name}."


class GraftedModule(Recordable):
    """What every patched class shares: its grafts, in the order in which they were made."""

    grafts: nn.ModuleDict

    @property
    def in_use(self) -> bool:
        """Whether the patched class is needed: for its own grafts, or for what it tells another module's."""
        return bool(self.grafts)

    def grafts_at(self, hook_point: HookPoint) -> list[nn.Module]:
        """The grafts that stand at `hook_point`, oldest first."""
        return [graft for graft in self.grafts.values() if graft.hook_point == hook_point]

    def linear_before(self, hook_point: HookPoint) -> LinearLayer | None:
        """The layer whose output, but for dropout, is what the first graft at `hook_point` gets; for folding."""
        return None

    def between(self, hook_point: HookPoint) -> str | None:
        """What keeps the host's linear layer from being the one before `hook_point`, for readers; None: nothing."""
        return None

    def linear_after(self, hook_point: HookPoint) -> LinearLayer | None:
        """The layer whose input is what the last graft at `hook_point` puts out; for folding."""
        return None

    def run(self, hook_point: HookPoint, value: Tensor, *context: Tensor | None) -> Tensor:
        """Send `value` through the grafts at `hook_point`, each with the same context, and offer what comes out."""
        for graft in self.grafts_at(hook_point):
            value = graft(value, *context)
        self.record(hook_point, value)
        return value


def plain_class(module: nn.Module) -> type[nn.Module]:
    """The host's own class of a module, grafted or not."""
    if not isinstance(module, GraftedModule):
        return type(module)
    return next(
        base for base in type(module).__mro__ if not issubclass(base, GraftedModule) and issubclass(base, nn.Module)
    )


class AttentionSite(GraftedModule):
    """project -> mix -> merge -> drop. An adapter supplies `project`, `merge`, `drop` and, if need be, `visible`; and
    `output_layer` for folding."""

    #: the hook points where it ends: ("attn.window",) where the block puts windows back after this module; both where a class
    #: stands in blocks of both kinds, and the site's targets say which one it carries
    ends: tuple[HookPoint, ...] = ("attn.end",)
    scale: float
    fused_attn: bool
    attn_drop: nn.Dropout
    training: bool

    def project(self, x: Tensor, *args: Any, **kwargs: Any) -> Projected:
        raise TypeError(f"{type(self).__name__} does not say how it projects")

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not say how it merges")

    def drop(self, tokens: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not say how it drops")

    def output_layer(self) -> LinearLayer | None:
        """The layer whose output is what `merge` returns, with nothing between; None: there is none."""
        return None

    def between(self, hook_point: HookPoint) -> str | None:
        made = next((graft for graft in self.grafts_at("mix") if graft.adds_after), None)
        if hook_point in ("tokens", *self.ends) and made is not None:
            return f"{made.kind} adds its own output after the host's output projection"
        if hook_point in self.ends and self.grafts_at("tokens"):
            return "another graft lies between it and the host's output projection"
        return None

    def linear_before(self, hook_point: HookPoint) -> LinearLayer | None:
        if hook_point not in ("tokens", *self.ends) or self.between(hook_point):
            return None
        return self.output_layer()

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The sentence, where a host takes and returns tokens alone."""
        return self.forward_projected(
            self.project(x, *args, **kwargs), lambda tokens: self.project(tokens, *args, **kwargs)
        )

    def forward_projected(
        self,
        projected: Projected,
        again: Callable[[Tensor], Projected],
        *,
        drop: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """What follows `project`; `again` projects other tokens in the same way, `drop` is the block's where it has it."""
        self.record("values", projected.v)
        mixed = self.mix(projected, again)
        tokens = self.merge(self.run("heads", mixed.heads, projected.queries), projected)
        return self.finish(tokens, mixed, projected=projected, drop=drop)

    def finish(
        self, tokens: Tensor, mixed: Mixed, *, projected: Projected, drop: Callable[[Tensor], Tensor] | None
    ) -> Tensor:
        """What follows `merge`; an adapter says so where another of the host's modules does it."""
        if mixed.after is not None:
            tokens = mixed.after(tokens)
        tokens = self.run("tokens", tokens, projected.queries)
        tokens = self.drop(tokens) if drop is None else drop(tokens)
        for hook_point in self.ends:
            tokens = self.run(hook_point, tokens)
        return tokens

    def dropped(self) -> float:
        """The share of attention weights that is dropped now; a host without `attn_drop` says so here and in `spread`."""
        return self.attn_drop.p if self.training else 0.0

    def mix(self, projected: Projected, again: Callable[[Tensor], Projected]) -> Mixed:
        """Scores -> weights -> heads: a mix graft's way where there is one, else the host's."""
        mixers = self.grafts_at("mix")
        if not mixers:
            return Mixed(self.attend(projected))
        mixed = cast(Mixed, mixers[-1](MixContext(self, projected, again)))
        if mixed.after is not None and not mixers[-1].adds_after:
            raise TypeError(
                f"{type(mixers[-1]).__name__} gives `Mixed.after`: set `adds_after`, which folding asks for"
            )
        return mixed

    def attend(self, projected: Projected) -> Tensor:
        """The host's own heads (B, H, Nq, dv): fused where nobody needs the weights, else explicit."""
        if self.fused_attn and not self.grafts_at("weights"):
            self.record_map(projected)
            return self.kernel(projected)
        visible = self.visible(projected) if self.grafts_at("weights") else None
        return self.spread_parts(self.run("weights", self.attention_map(projected), visible), projected)

    def record_map(self, projected: Projected) -> None:
        """Offer the map that a fused kernel makes and never holds; what that puts out stays, bit for bit."""
        if self.is_recording("scores", "weights"):
            self.record("weights", self.attention_map(projected))

    def map_of(self, projected: Projected) -> Tensor:
        """The host's own map (B, H, Nq, Nk); offers its scores."""
        scores = self.scores(projected)
        self.record("scores", scores)
        return self.normalize(scores)

    def kernel(self, projected: Projected) -> Tensor:
        """What the host's fused kernel makes of it (B, H, Nq, dv)."""
        return F.scaled_dot_product_attention(
            projected.q,
            projected.k,
            projected.v,
            attn_mask=self.fused_bias(projected),
            dropout_p=self.dropped(),
            is_causal=projected.causal,
            scale=self.scale,
        )

    def spread_parts(self, weights: Tensor, projected: Projected) -> Tensor:
        """`spread` where a graft may have made several maps of each head's: each gets its share of the head's values."""
        parts = weights.shape[1] // projected.v.shape[1]
        if parts == 1:
            return self.spread(weights, projected)
        values = projected.v.unflatten(-1, (parts, -1)).movedim(-2, 2).flatten(1, 2)
        heads = self.spread(weights, projected._replace(v=values))
        return heads.unflatten(1, (-1, parts)).movedim(2, -2).flatten(-2)

    def spread(self, weights: Tensor, projected: Projected) -> Tensor:
        """The values (B, H, Nk, dv) averaged by the weights (B, H, Nq, Nk), with the host's dropout."""
        return cast(Tensor, self.attn_drop(weights)) @ projected.v

    def scores(self, projected: Projected) -> Tensor:
        """What softmax gets (B, H, Nq, Nk): scaled products, bias and mask."""
        scores = (projected.q * self.scale) @ projected.k.transpose(-2, -1)
        bias = projected.bias
        if projected.causal:
            bias = scores.new_full(scores.shape[-2:], float("-inf")).triu_(1)
        elif bias is not None and bias.dtype == torch.bool:
            bias = torch.zeros_like(bias, dtype=scores.dtype).masked_fill_(~bias, float("-inf"))
        return scores if bias is None else scores + bias

    def normalize(self, scores: Tensor) -> Tensor:
        """The softmax (B, H, Nq, Nk) of the scores, in the precision that the host computes it in."""
        return scores.softmax(dim=-1)

    def fused_bias(self, projected: Projected) -> Tensor | None:
        """What the fused kernel gets as its mask."""
        return projected.bias

    def shared_bias(self, projected: Projected) -> Tensor | None:
        """The same for a mix graft, with four axes; one entry may serve several of the batch (see `MixContext.bias`)."""
        bias = self.fused_bias(projected)
        return bias if bias is None else bias.view((1,) * (4 - bias.ndim) + bias.shape)

    def visible(self, projected: Projected) -> Tensor | None:
        """Which keys each query may see, boolean and broadcastable to the map; None means all."""
        if projected.causal:
            ones = projected.q.new_ones(projected.q.shape[-2], projected.k.shape[-2], dtype=torch.bool)
            return ones.tril()
        if projected.bias is None or projected.bias.dtype == torch.bool:
            return projected.bias
        return projected.bias > torch.finfo(projected.bias.dtype).min  # some hosts hide with -inf, some with this


class MlpSite(GraftedModule):
    """front -> hidden -> mid -> out -> end. An adapter supplies `hidden` and `out`."""

    def hidden(self, x: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not say how it reaches its hidden width")

    def out(self, x: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not say how it comes back")

    def forward(self, x: Tensor) -> Tensor:
        """The sentence."""
        x = self.run("mlp.mid", self.hidden(self.run("mlp.front", x)))
        return self.run("mlp.end", self.out(x))


class MlpEnds(GraftedModule):
    """An MLP that is no plain fc1 -> act -> fc2 (gated ones): it has a front and an end, and no middle."""

    def forward(self, x: Tensor) -> Tensor:
        """The host's own forward between the two hook points."""
        x = super().forward(self.run("mlp.front", x))  # type: ignore[misc]
        return self.run("mlp.end", x)
