"""What the attentions of `transformers` share: three projections, an attention function that the configuration names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.attention import HOOK_POINTS, AttentionGeometry, AttentionSite, HookPoint, LinearLayer, Projected
from attngraft.errors import HostError
from attngraft.hosts.adapter import Site, check_known, head_rows
from attngraft.hosts.calls import check_call, one_sided
from attngraft.hosts.hf.exported import follows_input
from attngraft.hosts.linear_ends import linear
from attngraft.hosts.sites import global_site, window_site

#: attention functions that this package spells out; of the others nobody sees scores or heads
SPELLED = ("sdpa", "eager")
PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def unspelled(implementation: str | None) -> str | None:
    """Why grafts cannot stand in an attention that runs this function; None if they can."""
    if implementation in SPELLED:
        return None
    return (
        f"its attention runs {implementation!r}, whose scores and heads nobody sees; load the model with "
        "attn_implementation='sdpa' or 'eager', or call model.set_attn_implementation('sdpa')"
    )


class Aside(NamedTuple):
    """What goes through the sentence beside the tensors."""

    maps: list[Tensor]  #: the map, once it was spelled out
    more: Any = None  #: what the site's own `project` hands on


class ProjectedSite(AttentionSite):
    """Projections of queries, keys and values, and one of the output; returns (tokens, weights) as the host does.

    The weights are those of `eager` attention: after softmax, weights grafts and dropout; None with `sdpa`. Where a mix
    graft stands they are those of the host's own self-attention, whatever the graft adds to it.
    """

    projections: ClassVar[tuple[str, str, str]] = PROJECTIONS  #: names of those of q, k, v
    out: ClassVar[str] = "o_proj"  #: name of the output projection
    width: ClassVar[str] = "head_dim"  #: name of the width of a head
    rate: ClassVar[str] = "attention_dropout"  #: name of the share of weights that is dropped
    precise: ClassVar[bool] = True  #: whether softmax is computed in float32
    config: Any
    is_causal: bool

    @property
    def fused_attn(self) -> bool:  # type: ignore[override]
        """Whether the host runs a fused kernel.

        Raises:
            HostError: it runs an attention function that is not spelled out here.
        """
        implementation = self.config._attn_implementation
        if refusal := unspelled(implementation):
            raise HostError(f"{type(self).__name__} has grafts, and {refusal}")
        return bool(implementation == "sdpa")

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """The sentence."""
        return self.attended(hidden_states, attention_mask, **kwargs)[:2]

    def attended(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *,
        drop: Callable[[Tensor], Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Projected]:
        """Tokens and weights, and what the projections gave; `drop` is the layer's dropout where it leaves it to us."""
        seen: list[Tensor] = []
        self.check(attention_mask)

        def aside(projected: Projected) -> Projected:
            return projected._replace(rest=Aside(seen, projected.rest))

        projected = aside(self.project(hidden_states, attention_mask, **kwargs))
        if projected.causal:
            check_call(self, causal=True)
        tokens = self.forward_projected(
            projected, lambda tokens: aside(self.again(tokens, attention_mask, **kwargs)), drop=drop
        )
        if self.fused_attn:
            return tokens, None, projected
        if not seen and (kwargs.get("output_attentions") or getattr(self.config, "output_attentions", False)):
            seen.append(self.normalize(self.scores(projected)))  # a mix graft went without the map
        return tokens, seen[-1] if seen else None, projected

    def check(self, mask: Tensor | None) -> None:
        """Refuse a mask for grafts that average over all tokens; mix grafts are told of padding by `present`.

        Raises:
            UsageError: such a graft stands here, or a mix graft, and of two tokens only one sees the other.
        """
        if hides(mask):
            check_call(self, padded=True, told=("mix",))
        if mask is not None and self.grafts_at("mix") and one_sided(shown(mask)):
            check_call(self, causal=True)

    def project(self, x: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Projected:
        q, k, v = self.split(x)
        causal = self.causal(q, attention_mask, kwargs.get("is_causal"))
        return Projected(q, k, v, x, bias=attention_mask, causal=causal, present=self.present(attention_mask))

    def causal(self, q: Tensor, mask: Tensor | None, asked: bool | None) -> bool:
        """Whether the kernel's own causal mask stands for one that transformers left out; `eager` attention has none."""
        return self.fused_attn and mask is None and q.shape[2] > 1 and (self.is_causal if asked is None else asked)

    def again(self, x: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Projected:
        """What `project` makes of the tokens that a mix graft projects again."""
        return self.project(x, attention_mask, **kwargs)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v, (B, H, N, d) each."""
        q, k, v = (self.project_to(name, x) for name in self.projections)
        return q, k, v

    def project_to(self, name: str, x: Tensor) -> Tensor:
        """(B, H, N, d), what the projection of this name makes of tokens."""
        heads = getattr(self, name)(x).view(*x.shape[:-1], -1, getattr(self, self.width))
        return cast(Tensor, heads).transpose(1, 2)

    def present(self, mask: Tensor | None) -> Tensor | None:
        """(B or 1, N), False for tokens that no query may see; only a mix graft asks."""
        if mask is None or not self.grafts_at("mix"):
            return None
        return shown(mask).flatten(1, -2).any(dim=1)

    def scores(self, projected: Projected) -> Tensor:
        scores = torch.matmul(projected.q, projected.k.transpose(2, 3)) * self.scale
        bias = self.visible(projected) if projected.causal else projected.bias
        if bias is None:
            return scores
        if bias.dtype == torch.bool:  # a wall as transformers builds it: a query that sees nothing sees all alike
            return scores.masked_fill(~bias, torch.finfo(scores.dtype).min)
        return scores + bias

    def normalize(self, scores: Tensor) -> Tensor:
        if not self.precise:
            return super().normalize(scores)
        return F.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)

    def dropped(self) -> float:
        return float(getattr(self, self.rate)) if self.training else 0.0

    def spread(self, weights: Tensor, projected: Projected) -> Tensor:
        weights = F.dropout(weights, p=self.dropped(), training=self.training)
        projected.rest.maps.append(weights)
        return torch.matmul(weights, projected.v)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return cast(Tensor, getattr(self, self.out)(heads.transpose(1, 2).contiguous().flatten(2)))

    def drop(self, tokens: Tensor) -> Tensor:
        return tokens

    def visible(self, projected: Projected) -> Tensor | None:
        if projected.causal:
            return super().visible(projected)
        if projected.bias is None:
            return None
        seen = shown(projected.bias)
        return seen | ~seen.any(dim=-1, keepdim=True)  # as the scores have it, see there

    def output_layer(self) -> LinearLayer | None:
        return linear(getattr(self, self.out))


class ScalingSite(ProjectedSite):
    """Those that call the factor of the products `scaling`."""

    scaling: float

    @property
    def scale(self) -> float:  # type: ignore[override]
        return self.scaling


def hides(mask: Tensor | None) -> bool:
    """Whether a mask was given that hides a token: else transformers makes none, but for programs that are exported.

    Into those it puts masks that hide nothing, too; one that the program will be called with comes from an input. A trace
    with `strict=True` cannot tell the two apart, and is not refused.
    """
    if mask is None:
        return False
    return follows_input(mask) if torch.compiler.is_exporting() else True


def shown(mask: Tensor) -> Tensor:
    """What may be seen under a mask of transformers: boolean, or added, with the least number of its type as a wall."""
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def attention_site(
    module: Any,
    path: str,
    *,
    end: str,
    out: str | None = "o_proj",
    projections: tuple[str, str, str] = PROJECTIONS,
    width: str = "head_dim",
    ending: str | None = None,
    arguments: tuple[str, ...] = (),
    children: tuple[str, ...] = (),
    **known: Any,
) -> Site:
    """The site that such an attention is.

    Args:
        end: path of the module that carries `attn.end`; where there are windows, it puts them back and knows more of them.
        out: name of the output projection; None: another module has it.
        projections: names of those of q, k, v. width: of the width of a head.
        ending: path of the layer that leaves its dropout to an attention with grafts, for `attn.end`.
        arguments: that its forward takes, beside tokens and mask. children: that it may hold, beside its projections.
        known: fields of the geometry that the model knows.
    """
    check_known(
        module,
        path,
        arguments=("hidden_states", "attention_mask", "kwargs", *arguments),
        children=(*projections, *(() if out is None else (out,)), *children),
    )
    each = getattr(module, width)
    geometry = AttentionGeometry(
        **known,
        heads=getattr(module, projections[0]).out_features // each,
        key_width=each,
        value_width=each,
        rows={
            role: head_rows(module, name, start=0, width=each, step=each)
            for role, name in zip(("q", "k", "v"), projections, strict=True)
        },
    )
    config = getattr(module, "config", None)  # without one there is no choice
    if config is not None and (refusal := unspelled(config._attn_implementation)):
        missing = dict.fromkeys(HOOK_POINTS, refusal)
        return Site(path=path, kind="attention", geometry=geometry, targets={}, missing=missing)
    if geometry.window is not None:
        return window_site(path, geometry, block=end, fills=True)
    site = global_site(path, geometry)
    told: dict[HookPoint, tuple[str, ...]] = {} if ending is None else {"attn.end": (ending,)}
    return replace(site, targets={**site.targets, "attn.end": end}, companions=told)
