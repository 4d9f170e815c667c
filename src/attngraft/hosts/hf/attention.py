"""Attention of `transformers`: masks, and templates with separate q, k and v projections."""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

from attngraft.attention import (
    AttentionGeometry,
    AttentionSite,
    HookPoint,
    LinearLayer,
    Projected,
    attended_keys,
    visible_in,
)
from attngraft.dispatch.autograd import is_exporting
from attngraft.errors import HostError
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.patched import as_linear, check_call, is_one_directional, present_in
from attngraft.hosts.sites import global_site, projected_heads, refused_site, window_site


def hides_tokens(mask: Tensor | None) -> bool:
    """Return whether `mask` hides a token; its values are not read.

    Outside of export, transformers creates a mask only if it hides a token. During export it also creates masks that hide
    nothing, so the answer is True only if the mask depends on an input of the exported program. With `strict=True` the
    dependence is unknown, and the answer is False.
    """
    if mask is None:
        return False
    return _depends_on_input(mask) if is_exporting() else True


def _depends_on_input(tensor: Tensor) -> bool:
    """Return whether the values of `tensor` depend on an input of the program that is being exported.

    Returns False with `strict=True`, where the dependence is unknown: in Dynamo, a model cannot read its own graph.
    """
    if torch.compiler.is_dynamo_compiling():
        return False
    mode = get_proxy_mode()
    slot = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    if slot is None:
        return False
    seen: set[Node] = set()
    pending: list[Node] = [slot.proxy.node]
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "placeholder":
            return True
        # skip nodes that read only sizes and dtypes: a mask of ones depends on the batch size alone
        name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
        if not (name.startswith(("sym_", "new_")) or name.endswith("_like")):
            pending += node.all_input_nodes
    return False


def unsupported(implementation: str | None) -> str | None:
    """Return why grafts do not support an attention function; None if they do."""
    if implementation in ("sdpa", "eager"):
        return None
    return (
        f"its attention runs {implementation!r}, which does not expose scores and heads; load the model with "
        "attn_implementation='sdpa' or 'eager', or call model.set_attn_implementation('sdpa')"
    )


class CallState(NamedTuple):
    """`Projected.rest` of one call."""

    maps: list[Tensor]  #: the attention map, once computed
    more: Any = None  #: `rest` as returned by the site's own `project`


class ProjectedSite(AttentionSite):
    """Attention with q, k, v and output projections; returns (tokens, weights) as the host does.

    As in `eager` attention, the weights are returned after the softmax, the grafts at `weights`, and dropout; with `sdpa`
    they are None. With a graft at `mix`, the weights are those of the host without the graft.
    """

    projections: ClassVar[tuple[str, str, str]] = ("q_proj", "k_proj", "v_proj")  #: names of the q, k and v projections
    out: ClassVar[str | None] = "o_proj"  #: name of the output projection; None: it is in another module
    width: ClassVar[str] = "head_dim"  #: name of the attribute for the head width
    rate: ClassVar[str] = "attention_dropout"  #: name of the attribute for the weights' dropout, a rate or a module
    precise: ClassVar[bool] = True  #: whether softmax is computed in float32
    config: Any
    is_causal: bool

    @property
    def fused_attn(self) -> bool:  # type: ignore[override]
        """Whether the host runs a fused kernel.

        Raises:
            HostError: the configured attention function is not supported.
        """
        implementation = self.config._attn_implementation
        if refusal := unsupported(implementation):
            raise HostError(f"{type(self).__name__} has grafts, but {refusal}")
        return bool(implementation == "sdpa")

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        return self.run_attention(hidden_states, attention_mask, **kwargs)[:2]

    def run_attention(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *,
        drop: Callable[[Tensor], Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Projected]:
        """Return tokens, weights and projections; the layer's dropout `drop` replaces this module's dropout."""
        maps: list[Tensor] = []
        self.check_mask(attention_mask)

        def with_maps(projected: Projected) -> Projected:
            return projected.replace(rest=CallState(maps, projected.rest))

        projected = with_maps(self.project(hidden_states, attention_mask, **kwargs))
        if projected.causal:
            check_call(self, causal=True)
        tokens = self.forward_projected(
            projected, lambda tokens: with_maps(self.project_again(tokens, attention_mask, **kwargs)), drop=drop
        )
        if self.fused_attn:
            return tokens, None, projected
        if not maps and (kwargs.get("output_attentions") or getattr(self.config, "output_attentions", False)):
            maps.append(self.normalize(self.scores(projected)))  # a mix graft did not compute the map
        return tokens, maps[-1] if maps else None, projected

    def check_mask(self, mask: Tensor | None) -> None:
        """Refuse a mask that the module's grafts do not support; mix grafts receive the padding as `present`.

        Raises:
            UsageError: a graft does not support padding, or, with a graft at `mix`, an asymmetric mask.
        """
        if hides_tokens(mask):
            check_call(self, padded=True, exempt=("mix",))
        if mask is not None and self.grafts_at("mix") and is_one_directional(visible_in(mask)):
            check_call(self, causal=True)

    def project(self, x: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Projected:
        q, k, v = self.split(x)
        causal = self.kernel_is_causal(q, attention_mask, kwargs.get("is_causal"))
        return Projected(q, k, v, x, bias=attention_mask, causal=causal, present=self.present(attention_mask))

    def kernel_is_causal(self, q: Tensor, mask: Tensor | None, is_causal: bool | None) -> bool:
        """Return whether the fused kernel applies a causal mask by itself; `eager` attention never does."""
        if not self.fused_attn or mask is not None or q.shape[2] <= 1:
            return False  # some modules without a fused kernel have no `is_causal` (T5 of transformers 5.9)
        return self.is_causal if is_causal is None else is_causal

    def project_again(self, x: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Projected:
        """Project tokens that a mix graft passes instead of the input."""
        return self.project(x, attention_mask, **kwargs)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v, each (B, H, N, d)."""
        q, k, v = (self.project_heads(name, x) for name in self.projections)
        return q, k, v

    def project_heads(self, name: str, x: Tensor) -> Tensor:
        """Apply the projection `name` to tokens and return its heads (B, H, N, d)."""
        heads = getattr(self, name)(x).view(*x.shape[:-1], -1, getattr(self, self.width))
        return cast(Tensor, heads).transpose(1, 2)

    def present(self, mask: Tensor | None) -> Tensor | None:
        """Return the padding mask (B or 1, N) for mix grafts, False for tokens hidden from all queries."""
        return None if mask is None or not self.grafts_at("mix") else present_in(visible_in(mask))

    def scores(self, projected: Projected) -> Tensor:
        scores = torch.matmul(projected.q, projected.k.transpose(2, 3)) * self.scale
        bias = self.visible(projected) if projected.causal else projected.bias
        if bias is None:
            return scores
        if (
            bias.dtype == torch.bool
        ):  # as in transformers, a query whose keys are all hidden attends to all of them equally
            return scores.masked_fill(~bias, torch.finfo(scores.dtype).min)
        return scores + bias

    def normalize(self, scores: Tensor) -> Tensor:
        if not self.precise:
            return super().normalize(scores)
        return F.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)

    def dropped(self) -> float:
        dropout = getattr(self, self.rate)
        rate = dropout.p if isinstance(dropout, nn.Dropout) else float(dropout)
        return rate if self.training else 0.0

    def spread(self, weights: Tensor, projected: Projected) -> Tensor:
        weights = F.dropout(weights, p=self.dropped(), training=self.training)
        projected.rest.maps.append(weights)
        return torch.matmul(weights, projected.v)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return cast(Tensor, getattr(self, cast(str, self.out))(heads.transpose(1, 2).contiguous().flatten(2)))

    def drop(self, tokens: Tensor) -> Tensor:
        return tokens

    def visible(self, projected: Projected) -> Tensor | None:
        if projected.causal:
            return super().visible(projected)
        if projected.bias is None:
            return None
        visible = visible_in(projected.bias)
        return visible if projected.bias.dtype == torch.bool else attended_keys(visible, projected.bias)

    def output_layer(self) -> LinearLayer | None:
        return as_linear(getattr(self, cast(str, self.out)))


class ScalingSite(ProjectedSite):
    """Attention that stores its scale as `scaling`."""

    scaling: float

    @property
    def scale(self) -> float:  # type: ignore[override]
        return self.scaling


class RotarySite(ProjectedSite):
    """Attention that rotates q and k by (cos, sin), which the model computes once for all layers."""

    rotary: ClassVar[ModuleType]  #: the host's module that defines `apply_rotary_pos_emb`

    def project(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> Projected:
        projected = super().project(x, attention_mask, **kwargs)
        q, k = self.rotary.apply_rotary_pos_emb(projected.q, projected.k, *cast(Any, position_embeddings))
        return projected.replace(q=q, k=k)


def attention_site(
    module: Any,
    path: str,
    template: type[ProjectedSite] = ProjectedSite,
    *,
    end: str | None = None,
    dropout_layer: str | None = None,
    arguments: tuple[str, ...] = (),
    children: tuple[str, ...] = (),
    **fields: Any,
) -> Site:
    """Return the site of an attention module.

    Args:
        template: base of the patched class, which defines the names of the projections.
        end: path of the module with hook point `attn.end`; None: the attention module itself.
        dropout_layer: path of the layer that passes its dropout to patched attention, for `attn.end`.
        arguments: arguments of the module's forward besides tokens and mask.
        children: names of child modules besides the projections.
        fields: geometry fields that the model determines.
    """
    projections = template.projections
    check_known(
        module,
        path,
        arguments=("hidden_states", "attention_mask", "kwargs", *arguments),
        children=(*projections, *(() if template.out is None else (template.out,)), *children),
    )
    width = getattr(module, template.width)
    heads = getattr(module, projections[0]).out_features // width
    fields |= projected_heads(module, dict(zip(("q", "k", "v"), projections, strict=True)), heads=heads, width=width)
    config = getattr(module, "config", None)  # without a configuration, the attention function is fixed
    if config is not None and (refusal := unsupported(config._attn_implementation)):
        return refused_site(path, refusal, **fields)
    geometry = AttentionGeometry(**fields)
    if geometry.window is not None:
        return window_site(path, geometry, block=end, fills=True)
    site = global_site(path, geometry)
    companions: dict[HookPoint, tuple[str, ...]] = {} if dropout_layer is None else {"attn.end": (dropout_layer,)}
    return replace(site, targets={**site.targets, "attn.end": end or path}, companions=companions)
