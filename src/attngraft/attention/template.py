"""The forward templates of attention and MLP. An adapter's patched class inherits one and supplies its steps.

    attention: project (x -> q, k, v, bias) -> mix (scores -> weights -> heads) -> merge (heads -> tokens) -> drop
    MLP:       front -> hidden -> mid -> out -> end

A grafted site is the host's own module with a patched class, so `__init__` of these classes never runs: the only state that
they add is `self.grafts`, which the installer sets.
"""

from collections.abc import Callable
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.attention.graft import LinearLayer
from attngraft.attention.hook_points import HookPoint
from attngraft.attention.mixing import MixContext, Mixed, Projected
from attngraft.attention.recorder import Recordable


def is_graft(name: str) -> bool:
    """Return whether the parameter, buffer or module of this dotted name belongs to a graft, not to the host."""
    return ".grafts." in f".{name}."


class GraftedModule(Recordable):
    """Base of all patched classes, with the grafts of one module in order of installation."""

    grafts: nn.ModuleDict

    @property
    def in_use(self) -> bool:
        """Whether the patched class is still needed, by grafts of this module or of another module."""
        return bool(self.grafts)

    def grafts_at(self, hook_point: HookPoint) -> list[nn.Module]:
        """Return the grafts at `hook_point`, oldest first."""
        return [graft for graft in self.grafts.values() if graft.hook_point == hook_point]

    def linear_before(self, hook_point: HookPoint) -> LinearLayer | None:
        """Return the layer whose output, up to dropout, is the input of the first graft at `hook_point`; for folding."""
        return None

    def between(self, hook_point: HookPoint) -> str | None:
        """Return why the host's linear layer is not adjacent to `hook_point`, for messages; None if it may be."""
        return None

    def linear_after(self, hook_point: HookPoint) -> LinearLayer | None:
        """Return the layer whose input is the output of the last graft at `hook_point`; for folding."""
        return None

    def run(self, hook_point: HookPoint, value: Tensor, *context: Tensor | None) -> Tensor:
        """Apply the grafts at `hook_point` to `value` in order, each with the same context; record the result."""
        for graft in self.grafts_at(hook_point):
            value = graft(value, *context)
        self.record(hook_point, value)
        return value


def plain_class(module: nn.Module) -> type[nn.Module]:
    """Return the host's own class of a module, patched or not."""
    if not isinstance(module, GraftedModule):
        return type(module)
    return next(
        base for base in type(module).__mro__ if not issubclass(base, GraftedModule) and issubclass(base, nn.Module)
    )


#: an additive mask of at most this value hides a token; hosts use -1e4, -1e9, the dtype's minimum or -inf
HIDDEN = -5e3


def visible_in(mask: Tensor) -> Tensor:
    """Convert a boolean or additive mask to boolean, True for visible keys."""
    return mask if mask.dtype == torch.bool else mask > HIDDEN


def attended_keys(visible: Tensor, bias: Tensor) -> Tensor:
    """Return `visible`, with all keys that have a finite bias for queries without visible keys.

    The softmax of a query whose keys are all masked by one finite number is uniform; by -inf, fused kernels return zeros.
    """
    return visible | (bias > float("-inf")) & ~visible.any(dim=-1, keepdim=True)


#: hook points after the output projection, in the order of the forward pass
_AFTER_PROJECTION: tuple[HookPoint, ...] = ("tokens", "attn.window", "attn.end")


class AttentionSite(GraftedModule):
    """Template of attention: project -> mix -> merge -> drop.

    An adapter implements `project`, `merge`, `drop` and, where the default does not fit, `visible`. Override
    `output_layer` to make grafts foldable.
    """

    #: hook points at the end of this module: ("attn.window",) if the block merges windows afterwards; both names for a
    #: class used in blocks with and without windows, whose sites each list only one of them in `targets`
    ends: tuple[HookPoint, ...] = ("attn.end",)
    #: whether a call may mask all keys of a query; False if the bias is only positions or separates windows
    may_hide_all: ClassVar[bool] = True
    scale: float
    fused_attn: bool
    attn_drop: nn.Dropout
    training: bool

    def project(self, x: Tensor, *args: Any, **kwargs: Any) -> Projected:
        raise TypeError(f"{type(self).__name__} must implement project()")

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        raise TypeError(f"{type(self).__name__} must implement merge()")

    def drop(self, tokens: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} must implement drop()")

    def output_layer(self) -> LinearLayer | None:
        """Return the linear layer that computes the output of `merge`; None if there is no such layer."""
        return None

    def between(self, hook_point: HookPoint) -> str | None:
        if hook_point not in _AFTER_PROJECTION:
            return None
        adding = next((graft for graft in self.grafts_at("mix") if graft.adds_after), None)
        if adding is not None:
            return f"{adding.kind} adds its own output after the host's output projection"
        if any(self.grafts_at(each) for each in _AFTER_PROJECTION[: _AFTER_PROJECTION.index(hook_point)]):
            return "another graft lies between it and the host's output projection"
        return None

    def linear_before(self, hook_point: HookPoint) -> LinearLayer | None:
        if hook_point not in _AFTER_PROJECTION or self.between(hook_point):
            return None
        return self.output_layer()

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Run the template, for hosts whose attention maps tokens to tokens."""
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
        """Run the template, starting from the projections.

        Args:
            again: function that projects other tokens in the same way, for mix grafts.
            drop: the dropout, if it belongs to the block; None: `self.drop`.
        """
        self.record("values", projected.v)
        mixed = self.mix(projected, again)
        tokens = self.merge(self.run("heads", mixed.heads, projected.queries), projected)
        return self.finish(tokens, mixed, projected=projected, drop=drop)

    def finish(
        self, tokens: Tensor, mixed: Mixed, *, projected: Projected, drop: Callable[[Tensor], Tensor] | None
    ) -> Tensor:
        """Run the steps after `merge`. Adapters override this if another module of the host runs some of them."""
        if mixed.after is not None:
            tokens = mixed.after(tokens)
        tokens = self.run("tokens", tokens, projected.queries)
        tokens = self.drop(tokens) if drop is None else drop(tokens)
        for hook_point in self.ends:
            tokens = self.run(hook_point, tokens)
        return tokens

    def dropped(self) -> float:
        """Return the current dropout probability of attention weights; override if there is no `attn_drop`."""
        return self.attn_drop.p if self.training else 0.0

    def mix(self, projected: Projected, again: Callable[[Tensor], Projected]) -> Mixed:
        """Compute the heads from the projections, with the mix graft if there is one, else the host's attention."""
        mixers = self.grafts_at("mix")
        if not mixers:
            return Mixed(self.attend(projected))
        mixed = cast(Mixed, mixers[-1](MixContext(self, projected, again)))
        if mixed.after is not None and not mixers[-1].adds_after:
            raise TypeError(f"{type(mixers[-1]).__name__} returns `Mixed.after` and must set `adds_after`, for folding")
        return mixed

    def attend(self, projected: Projected) -> Tensor:
        """Compute the host's own heads (B, H, Nq, dv): fused if possible, explicit if a graft needs the weights."""
        if self.fused_attn and not self.grafts_at("weights"):
            self.record_map(projected)
            return self.kernel(projected)
        return self.attend_explicitly(projected)

    def attend_explicitly(self, projected: Projected) -> Tensor:
        """Compute the heads from the attention map, which the grafts at `weights` change.

        With grafts, a query without visible keys gets zeros, as from fused kernels, and not NaN as in explicit hosts.
        """
        if not (self.grafts_at("weights") or self.grafts_at("mix")):
            return self.spread(self.run("weights", self.attention_map(projected)), projected)
        projected, hidden = self.unmask_hidden(projected)
        visible = self.visible(projected) if self.grafts_at("weights") else None
        heads = self.spread_parts(self.run("weights", self.attention_map(projected), visible), projected)
        return heads if hidden is None else heads.masked_fill(hidden, 0)

    def record_map(self, projected: Projected) -> None:
        """Record the attention map, which a fused kernel does not return; the kernel's output does not change."""
        if self.is_recording("scores", "weights"):
            self.record("weights", self.attention_map(self.unmask_hidden(projected)[0]))

    def unmask_hidden(self, projected: Projected) -> tuple[Projected, Tensor | None]:
        """Show all keys to queries without visible keys, whose softmax has no value, and return these queries.

        Returns:
            The projections, and a boolean mask (B or 1, H or 1, Nq, 1); None if the call masks nothing.
        """
        bias, visible = projected.bias, self.visible(projected) if self.may_hide_all else None
        if visible is None or bias is None or projected.causal:
            return projected, None
        hidden = ~visible.any(dim=-1, keepdim=True)
        shown = bias | hidden if bias.dtype == torch.bool else bias.masked_fill(hidden, 0)
        return projected.replace(bias=shown), hidden

    def attention_map(self, projected: Projected) -> Tensor:
        """Record the scores, and return the host's attention map (B, H, Nq, Nk)."""
        scores = self.scores(projected)
        self.record("scores", scores)
        return self.normalize(scores)

    def kernel(self, projected: Projected) -> Tensor:
        """Run the host's fused kernel and return heads (B, H, Nq, dv)."""
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
        """Run `spread` on weights (B, n H, Nq, Nk), where grafts may have made n maps from each head's map.

        Each of the n maps of a head averages its own slice of the head's values.
        """
        parts = weights.shape[1] // projected.v.shape[1]
        if parts == 1:
            return self.spread(weights, projected)
        values = projected.v.unflatten(-1, (parts, -1)).movedim(-2, 2).flatten(1, 2)
        heads = self.spread(weights, projected.replace(v=values))
        return heads.unflatten(1, (-1, parts)).movedim(2, -2).flatten(-2)

    def spread(self, weights: Tensor, projected: Projected) -> Tensor:
        """Average the values (B, H, Nk, dv) by the weights (B, H, Nq, Nk), with the host's dropout."""
        return cast(Tensor, self.attn_drop(weights)) @ projected.v

    def scores(self, projected: Projected) -> Tensor:
        """Return the input of softmax (B, H, Nq, Nk): scaled products plus bias and mask."""
        scores = (projected.q * self.scale) @ projected.k.transpose(-2, -1)
        bias = projected.bias
        if projected.causal:
            bias = scores.new_full(scores.shape[-2:], float("-inf")).triu_(1)
        elif bias is not None and bias.dtype == torch.bool:
            bias = torch.zeros_like(bias, dtype=scores.dtype).masked_fill_(~bias, float("-inf"))
        return scores if bias is None else scores + bias

    def normalize(self, scores: Tensor) -> Tensor:
        """Return the softmax (B, H, Nq, Nk) of the scores, in the host's precision."""
        return scores.softmax(dim=-1)

    def fused_bias(self, projected: Projected) -> Tensor | None:
        """Return the bias for the fused kernel, including the mask."""
        return projected.bias

    def shared_bias(self, projected: Projected) -> Tensor | None:
        """Return `fused_bias` with four axes, for mix grafts; batch entries may share biases (see `MixContext.bias`)."""
        bias = self.fused_bias(projected)
        return bias if bias is None else bias.view((1,) * (4 - bias.ndim) + bias.shape)

    def visible(self, projected: Projected) -> Tensor | None:
        """Return the boolean mask of visible keys per query, broadcastable to the map; None: no mask."""
        if projected.causal:
            ones = projected.q.new_ones(projected.q.shape[-2], projected.k.shape[-2], dtype=torch.bool)
            return ones.tril()
        bias = projected.bias
        if bias is None or bias.dtype == torch.bool:
            return bias
        return attended_keys(visible_in(bias), bias)


class MlpSite(GraftedModule):
    """Template of an MLP: front -> hidden -> mid -> out -> end. An adapter implements `hidden` and `out`."""

    def hidden(self, x: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} must implement hidden()")

    def out(self, x: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} must implement out()")

    def forward(self, x: Tensor) -> Tensor:
        """Run the template."""
        x = self.run("mlp.mid", self.hidden(self.run("mlp.front", x)))
        return self.run("mlp.end", self.out(x))


class MlpEnds(GraftedModule):
    """Template of MLPs not split into `hidden` and `out`, such as gated ones, with hook points at both ends only."""

    def forward(self, x: Tensor) -> Tensor:
        """Run the host's own forward between the two hook points."""
        x = super().forward(self.run("mlp.front", x))  # type: ignore[misc]
        return self.run("mlp.end", x)
