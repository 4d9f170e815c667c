"""Hugging Face's T5 and mT5: unscaled q k^T, and position biases computed once, in the first layer."""

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.models.t5 import modeling_t5 as t5

from attngraft.attention import (
    GraftedModule,
    HookPoint,
    LinearLayer,
    MlpEnds,
    MlpGeometry,
    Projected,
    Projection,
)
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.family import ShapeProbe, Sites
from attngraft.hosts.hf.attention import attention_site, hides_tokens
from attngraft.hosts.hf.decoder import CACHE, CachingSite, pop_cache
from attngraft.hosts.hf.mlp import MaskedLayer
from attngraft.hosts.patched import StepMlp, TwoLinearEnds, as_linear, check_call
from attngraft.hosts.sites import NO_MIDDLE, mlp_site

#: whether transformers is older than 5.15: attention never runs a fused kernel, the mask is added to the position biases
#: that are returned for the next layer, and the map is returned only on request
_EXPLICIT = "output_attentions" in inspect.signature(t5.T5Attention.forward).parameters


class Attention(CachingSite):
    """`T5Attention`: adds relative position biases to q k^T, and returns the biases for the next layer."""

    projections = ("q", "k", "v")
    out, width, rate, precise = "o", "key_value_proj_dim", "dropout", _EXPLICIT
    config: Any = None  # missing in older transformers
    n_heads: int
    has_relative_attention_bias: bool
    gradient_checkpointing: bool
    compute_bias: Callable[..., Tensor]

    @property
    def scale(self) -> float:  # type: ignore[override]
        return 1.0

    @property
    def fused_attn(self) -> bool:  # type: ignore[override]
        return not _EXPLICIT and super().fused_attn

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor | None, ...]:
        past_key_values = pop_cache(past_key_values, kwargs)
        past = 0 if past_key_values is None else past_key_values.get_seq_length(self.layer_idx)
        past = past.clone() if isinstance(past, Tensor) else past  # the cache increments it in place
        given = {"key_value_states": key_value_states, "past_key_values": past_key_values, **kwargs}
        tokens, weights, projected = self.run_attention(
            hidden_states, mask, position_bias=position_bias, past=past, **given
        )
        positions = projected.rest.more
        if _EXPLICIT and not kwargs.get("output_attentions"):
            return tokens, positions
        return tokens, positions, weights

    def project(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        *args: Any,
        position_bias: Tensor | None = None,
        past: Any = 0,
        **kwargs: Any,
    ) -> Projected:
        projected = super().project(x, attention_mask, *args, **kwargs)
        positions, mask = position_bias, attention_mask
        if positions is None:
            positions = self._positions(projected, past)
            if _EXPLICIT and mask is not None:
                positions = positions + mask[..., : projected.k.shape[2]]
        bias = positions[..., : projected.k.shape[2]]
        if projected.causal:
            check_call(self, causal=True)
            bias = _hide(bias, cast(Tensor, self.visible(projected)))
        elif mask is not None and not _EXPLICIT:
            bias = _hide(bias, mask) if mask.dtype == torch.bool else bias + mask
        return projected.replace(bias=bias.contiguous(), causal=False, rest=positions)

    def _positions(self, projected: Projected, past: Any) -> Tensor:
        """Return the position biases (1, H, Nq, Nk) of q k^T; zeros if this layer has no table of biases."""
        q, keys = projected.q, projected.k.shape[2]
        if self.has_relative_attention_bias:
            return self.compute_bias(q.shape[2], keys, device=q.device, past_seen_tokens=past)
        zeros = q.new_zeros(1, self.n_heads, q.shape[2], keys)
        return zeros.requires_grad_(self.gradient_checkpointing and self.training)


def _hide(bias: Tensor, visible: Tensor) -> Tensor:
    return torch.where(visible, bias, torch.finfo(bias.dtype).min)


class AttentionLayer(GraftedModule):
    """An attention branch with hook point `attn.end`: norm, attention, dropout and residual."""

    layer_norm: nn.Module
    dropout: nn.Module

    def run_branch(self, attention: nn.Module, x: Tensor, **given: Any) -> tuple[Any, ...]:
        attended, *rest = attention(self.layer_norm(x), **given)
        return (x + self.run("attn.end", self.dropout(attended)), *rest)


class SelfAttentionLayer(AttentionLayer):
    """Patched class of `T5LayerSelfAttention`."""

    SelfAttention: Any

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Run the layer.

        Raises:
            UsageError: the mask hides tokens, or the call is causal, and a graft of the layer averages over all tokens.
        """
        if not self.SelfAttention.is_decoder:
            check_call(self, padded=hides_tokens(attention_mask), causal=bool(kwargs.get("is_causal")))
        given = dict(zip(("position_bias", CACHE), args, strict=False))
        return self.run_branch(self.SelfAttention, hidden_states, mask=attention_mask, **given, **kwargs)


class CrossAttentionLayer(AttentionLayer):
    """Patched class of `T5LayerCrossAttention`."""

    EncDecAttention: nn.Module

    def forward(
        self, hidden_states: Tensor, key_value_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        given = {"key_value_states": key_value_states, **kwargs}
        return self.run_branch(self.EncDecAttention, hidden_states, mask=attention_mask, **given)


class DenseMlp(TwoLinearEnds, StepMlp):
    """`T5DenseActDense`: linear layers without biases; the second may be float32 in half-precision models."""

    linear_names = ("wi", "wo")
    before_mid = ("wi", "act", "dropout")
    wo: nn.Linear

    def out(self, x: Tensor) -> Tensor:
        kind = self.wo.weight.dtype
        return self.wo(x if kind == torch.int8 else x.to(kind))


class MlpLayer(GraftedModule):
    """`T5LayerFF`: norm, MLP, dropout and residual."""

    DenseReluDense: Any
    layer_norm: nn.Module
    dropout: nn.Module

    def forward(self, hidden_states: Tensor) -> Tensor:
        out = self.dropout(self.DenseReluDense(self.layer_norm(hidden_states)))
        return hidden_states + self.run("mlp.end", out)

    def run(self, hook_point: HookPoint, value: Tensor, *context: Tensor | None) -> Tensor:
        """Run the grafts in float32 if a float32 `wo` makes their input float32 in a half-precision model."""
        kind = cast(Tensor, self.layer_norm.weight).dtype
        if value.dtype != torch.float32 or kind not in (torch.float16, torch.bfloat16):
            return super().run(hook_point, value, *context)
        for graft in self.grafts_at(hook_point):
            state = {name: each.float() for name, each in graft.state_dict(keep_vars=True).items()}
            value = cast(Tensor, torch.func.functional_call(graft, state, (value, *context)))
        self.record(hook_point, value)
        return value

    def linear_before(self, hook_point: HookPoint) -> LinearLayer | None:
        return as_linear(self.DenseReluDense.wo) if hook_point == "mlp.end" else None


class Block(MaskedLayer):
    """`T5Block`, which checks the encoder's mask for the grafts of its MLP."""

    layer: nn.ModuleList

    def grafted_parts(self) -> list[GraftedModule]:
        return [each for each in self.layer[-1].modules() if isinstance(each, GraftedModule)]


#: class name without the model's prefix -> template
TEMPLATES: dict[str, type[GraftedModule]] = {
    "Attention": Attention,
    "LayerSelfAttention": SelfAttentionLayer,
    "LayerCrossAttention": CrossAttentionLayer,
    "DenseActDense": DenseMlp,
    "DenseGatedActDense": MlpEnds,
    "LayerFF": MlpLayer,
    "Block": Block,
}
_LAYER_ARGUMENTS = (
    *("hidden_states", "attention_mask", "position_bias", CACHE, "kwargs"),
    *("use_cache", "output_attentions", "return_dict"),  # of older transformers
)


def t5_sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    """Yield the sites of a block: `layer.0.SelfAttention`, `layer.1.EncDecAttention` (decoders), the MLP."""
    causal = block.is_decoder
    yield _attention_site(block.layer[0], f"{path}.layer.0", "SelfAttention", causal=causal)
    if causal:
        yield _attention_site(block.layer[1], f"{path}.layer.1", "EncDecAttention", causal=True, cross=True)
    encoder = ("encoder_hidden_states", "encoder_attention_mask", "encoder_decoder_position_bias")
    check_known(block, path, arguments=(*_LAYER_ARGUMENTS, *encoder), children=("layer",))
    last, dense = block.layer[-1], block.layer[-1].DenseReluDense
    outer = f"{path}.layer.{len(block.layer) - 1}"
    inner, gated = f"{outer}.DenseReluDense", hasattr(dense, "wi_0")
    check_known(last, outer, arguments=("hidden_states",), children=("DenseReluDense", "layer_norm", "dropout"))
    children = (*(("wi_0", "wi_1") if gated else ("wi",)), "wo", "act", "dropout")
    check_known(dense, inner, arguments=("hidden_states", "x"), children=children)
    geometry = MlpGeometry(dim=dense.wo.out_features, hidden=dense.wo.in_features, causal=causal)
    yield mlp_site(inner, geometry, NO_MIDDLE if gated else {}, end=outer, layer=None if causal else path)


def _attention_site(layer: Any, path: str, name: str, **fields: Any) -> Site:
    arguments = (*_LAYER_ARGUMENTS, "key_value_states")
    check_known(layer, path, arguments=arguments, children=(name, "layer_norm", "dropout"))
    attention = layer.get_submodule(name)
    # later layers use the position table too, so its parameters are needed even if a graft does not use these scores
    return attention_site(
        attention,
        f"{path}.{name}",
        Attention,
        end=path,
        arguments=("mask", "key_value_states", "position_bias", CACHE, "output_attentions"),
        children=("relative_attention_bias",),
        dim=attention.d_model,
        projection=Projection(bias=False),
        **fields,
    )
