"""Layers of BERT and similar models, which spread attention and MLP over several modules.

`BertSelfAttention` has the hook points `mix`, `weights` and `heads`. The output projection is in `BertSelfOutput`, together
with dropout, residual and norm; `BertAttention`, the parent of both modules, runs these steps itself and has the hook points
`tokens` and `attn.end`. For the MLP, `BertIntermediate` has `mlp.front` and `mlp.mid`, and `BertOutput` has `mlp.end`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, cast

from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache

from attngraft.attention import CLASS, GraftedModule, HookPoint, LinearLayer, Mixed, MlpGeometry, Projected
from attngraft.errors import UsageError
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.family import ShapeProbe, Sites
from attngraft.hosts.hf.attention import attention_site, hides_tokens
from attngraft.hosts.hf.decoder import CACHE, CachingSite, pop_cache
from attngraft.hosts.hf.mlp import MaskedLayer, missing_in_chunks
from attngraft.hosts.patched import as_linear, check_call
from attngraft.hosts.sites import mlp_site

_ARGUMENTS = ("hidden_states", "attention_mask", "encoder_hidden_states", "encoder_attention_mask", CACHE, "kwargs")


class BertSelfAttention(CachingSite):
    """Attention up to the heads; returns (concatenated heads, weights) as the host does."""

    projections = ("query", "key", "value")
    out, width, rate = None, "attention_head_size", "dropout"
    precise = False
    ends = ()
    crosses: ClassVar[bool] = False

    def project(  # type: ignore[override]
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        after: list[Callable[[Tensor], Tensor]] | None = None,
        encoder_hidden_states: Tensor | None = None,
        is_causal: bool | None = None,
        **kwargs: Any,
    ) -> Projected:
        """Project the tokens; `after` collects functions to apply after the output projection.

        Raises:
            UsageError: a graft does not support cached keys, or the cache does not support cross-attention.
        """
        if self.crosses and not (past_key_values is None or isinstance(past_key_values, EncoderDecoderCache)):
            raise UsageError(
                f"{type(self).__name__} requires an EncoderDecoderCache, not a {type(past_key_values).__name__}; pass no "
                "cache, or generate with transformers.EncoderDecoderModel"
            )
        if past_key_values is not None and not self.is_decoder:  # prefix keys
            check_call(self, cross=True)
        memory = encoder_hidden_states if self.crosses else None
        projected = super().project(x, attention_mask, memory, past_key_values, is_causal=is_causal)
        return projected.replace(rest=after)

    def finish(self, tokens: Tensor, mixed: Mixed, *, projected: Projected, drop: Any) -> Tensor:
        if mixed.after is not None:
            projected.rest.more.append(mixed.after)
        return tokens

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return heads.transpose(1, 2).contiguous().flatten(2)

    def output_layer(self) -> LinearLayer | None:
        return None


class BertCrossAttention(BertSelfAttention):
    """Cross-attention of decoders."""

    crosses = True
    is_decoder = True


class BertAttention(GraftedModule):
    """Attention with output projection, dropout, residual and norm, around `BertSelfAttention`."""

    output: Any
    is_cross_attention: bool

    @property
    def in_use(self) -> bool:
        return super().in_use or bool(self._mixers())

    def _mixers(self) -> list[nn.Module]:
        inner = self._inner()
        return inner.grafts_at("mix") if isinstance(inner, GraftedModule) else []

    def _inner(self) -> Any:
        return getattr(self, "self")  # noqa: B009 - the child is called `self`

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        check_call(self, padded=hides_tokens(attention_mask), causal=bool(kwargs.get("is_causal")))
        after: list[Callable[[Tensor], Tensor]] = []
        heads, weights = self._inner()(
            hidden_states,
            encoder_hidden_states=encoder_hidden_states,
            attention_mask=encoder_attention_mask if self.is_cross_attention else attention_mask,
            **{CACHE: pop_cache(past_key_values, kwargs)},
            **({"after": after} if self._mixers() else {}),
            **kwargs,
        )
        tokens = self.output.dense(heads)
        for add in after:
            tokens = add(tokens)
        tokens = self.run("tokens", tokens, hidden_states)
        tokens = self.run("attn.end", self.output.dropout(tokens))
        return self.output.LayerNorm(tokens + hidden_states), weights

    def between(self, hook_point: HookPoint) -> str | None:
        inner = self._inner()
        if isinstance(inner, GraftedModule) and (reason := inner.between(hook_point)):
            return reason
        if hook_point == "attn.end" and self.grafts_at("tokens"):
            return "another graft lies between it and the host's output projection"
        return None

    def linear_before(self, hook_point: HookPoint) -> LinearLayer | None:
        return None if self.between(hook_point) else as_linear(self.output.dense)


class BertIntermediate(GraftedModule):
    """First linear layer and activation of the MLP."""

    dense: nn.Module
    intermediate_act_fn: Callable[[Tensor], Tensor]

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = self.dense(self.run("mlp.front", hidden_states))
        return self.run("mlp.mid", self.intermediate_act_fn(x))

    def linear_after(self, hook_point: HookPoint) -> LinearLayer | None:
        return as_linear(self.dense) if hook_point == "mlp.front" else None


class BertOutput(GraftedModule):
    """Second linear layer and dropout of the MLP, then residual and norm."""

    dense: nn.Module
    dropout: nn.Module
    LayerNorm: nn.Module

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        x = self.run("mlp.end", self.dropout(self.dense(hidden_states)))
        return cast(Tensor, self.LayerNorm(x + input_tensor))

    def linear_before(self, hook_point: HookPoint) -> LinearLayer | None:
        return as_linear(self.dense)


class BertLayer(MaskedLayer):
    """A layer that passes its mask to its attention, but not to its MLP."""

    unmasked = ("intermediate", "output")


#: class name without the model's prefix -> template
TEMPLATES: dict[str, type[GraftedModule]] = {
    "SelfAttention": BertSelfAttention,
    "CrossAttention": BertCrossAttention,
    "Attention": BertAttention,
    "Intermediate": BertIntermediate,
    "Output": BertOutput,
    "Layer": BertLayer,
}


def bert_sites(layer: Any, path: str, shapes: ShapeProbe) -> Sites:
    """Yield the sites of a layer: `attention`, `crossattention` (some decoders), `intermediate` (the MLP)."""
    check_known(layer, path, arguments=_ARGUMENTS, children=("attention", "crossattention", "intermediate", "output"))
    causal = bool(layer.is_decoder)
    fields = {"dim": layer.output.dense.out_features, "causal": causal, "prefix": () if causal else CLASS}
    yield _attention_site(layer.attention, f"{path}.attention", **fields)
    if layer.add_cross_attention:
        yield _attention_site(layer.crossattention, f"{path}.crossattention", cross=True, **fields)
    front, end = f"{path}.intermediate", f"{path}.output"
    children = ("dense", "intermediate_act_fn")
    check_known(layer.intermediate, front, arguments=("hidden_states",), children=children)
    _check_output(layer.output, end)
    geometry = MlpGeometry(**fields, hidden=layer.intermediate.dense.out_features)
    yield mlp_site(front, geometry, missing_in_chunks(layer), end=end, layer=path)


def _attention_site(module: Any, path: str, **fields: Any) -> Site:
    check_known(module, path, arguments=_ARGUMENTS, children=("self", "output"))
    _check_output(module.output, f"{path}.output")
    site = attention_site(
        module.get_submodule("self"),
        f"{path}.self",
        BertSelfAttention,
        end=path,
        arguments=(CACHE, "encoder_hidden_states"),
        children=("dropout",),
        **fields,
    )
    targets = {**site.targets, "tokens": path} if site.targets else {}
    return replace(site, path=path, targets=targets, companions={"mix": (path,)})


def _check_output(module: nn.Module, path: str) -> None:
    check_known(module, path, arguments=("hidden_states", "input_tensor"), children=("dense", "LayerNorm", "dropout"))
