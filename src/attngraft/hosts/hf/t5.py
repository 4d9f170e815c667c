"""Hugging Face's T5 and mT5: relative positions that the first layer makes for all, products that are not scaled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers.models.mt5 import modeling_mt5 as mt5
from transformers.models.t5 import modeling_t5 as t5

from attngraft.attention import (
    GraftedModule,
    HookPoint,
    LinearLayer,
    MlpEnds,
    MlpGeometry,
    MlpSite,
    Projected,
    Projection,
)
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.calls import check_call
from attngraft.hosts.hf.attention import attention_site, hides
from attngraft.hosts.hf.decoder import CACHE, CachingSite, SequenceFamily, kept
from attngraft.hosts.linear_ends import LinearEnds, linear
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import NO_MIDDLE, mlp_site

#: before transformers 5.15 these attentions did their own sums whatever the configuration named, put the mask into the
#: positions that they hand to the next layer, and gave the map only where it was asked for
_OWN_SUMS = "output_attentions" in inspect.signature(t5.T5Attention.forward).parameters


class _Attention(CachingSite):
    projections = ("q", "k", "v")
    out, width, rate, precise = "o", "key_value_proj_dim", "dropout", _OWN_SUMS
    config: Any = None  # as it was then
    n_heads: int
    has_relative_attention_bias: bool
    gradient_checkpointing: bool
    compute_bias: Callable[..., Tensor]

    @property
    def scale(self) -> float:  # type: ignore[override]
        return 1.0

    @property
    def fused_attn(self) -> bool:  # type: ignore[override]
        return not _OWN_SUMS and super().fused_attn

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor | None, ...]:
        """The sentence; the positions go with what the host gives, to the next layer."""
        past_key_values = kept(past_key_values, kwargs)
        past = 0 if past_key_values is None else past_key_values.get_seq_length(self.layer_idx)
        past = past.clone() if isinstance(past, Tensor) else past  # which the cache counts up in place
        given = {"key_value_states": key_value_states, "past_key_values": past_key_values, **kwargs}
        tokens, weights, projected = self.attended(hidden_states, mask, position_bias=position_bias, past=past, **given)
        positions = projected.rest.more
        if _OWN_SUMS and not kwargs.get("output_attentions"):
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
            if _OWN_SUMS and mask is not None:
                positions = positions + mask[..., : projected.k.shape[2]]
        bias = positions[..., : projected.k.shape[2]]
        if projected.causal:
            check_call(self, causal=True)
            bias = _walled(bias, cast(Tensor, self.visible(projected)))
        elif mask is not None and not _OWN_SUMS:
            bias = _walled(bias, mask) if mask.dtype == torch.bool else bias + mask
        return projected._replace(bias=bias.contiguous(), causal=False, rest=positions)

    def _positions(self, projected: Projected, past: Any) -> Tensor:
        """(1, H, Nq, Nk), what the host adds to the products; zeros where it has no table."""
        q, keys = projected.q, projected.k.shape[2]
        if self.has_relative_attention_bias:
            return self.compute_bias(q.shape[2], keys, device=q.device, past_seen_tokens=past)
        zeros = q.new_zeros(1, self.n_heads, q.shape[2], keys)
        return zeros.requires_grad_(self.gradient_checkpointing and self.training)


def _walled(bias: Tensor, visible: Tensor) -> Tensor:
    return torch.where(visible, bias, torch.finfo(bias.dtype).min)


class GraftedT5Attention(_Attention, t5.T5Attention):
    """`transformers.models.t5.modeling_t5.T5Attention`."""


class GraftedMT5Attention(_Attention, mt5.MT5Attention):
    """`transformers.models.mt5.modeling_mt5.MT5Attention`."""


class _AttentionLayer(GraftedModule):
    """What drops behind an attention and adds what came in: there its branch ends."""

    layer_norm: nn.Module
    dropout: nn.Module

    def ended(self, attention: nn.Module, x: Tensor, **given: Any) -> tuple[Any, ...]:
        attended, *rest = attention(self.layer_norm(x), **given)
        return (x + self.run("attn.end", self.dropout(attended)), *rest)


class _SelfLayer(_AttentionLayer):
    SelfAttention: Any

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        """The host's own, with a place at the end.

        Raises:
            UsageError: the mask hides tokens, or the call asks for a causal one, and a graft here averages over all.
        """
        if not self.SelfAttention.is_decoder:
            check_call(self, padded=hides(attention_mask), causal=bool(kwargs.get("is_causal")))
        given = dict(zip(("position_bias", CACHE), args, strict=False))
        return self.ended(self.SelfAttention, hidden_states, mask=attention_mask, **given, **kwargs)


class _CrossLayer(_AttentionLayer):
    EncDecAttention: nn.Module

    def forward(
        self, hidden_states: Tensor, key_value_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """The host's own, with a place at the end."""
        given = {"key_value_states": key_value_states, **kwargs}
        return self.ended(self.EncDecAttention, hidden_states, mask=attention_mask, **given)


class GraftedT5LayerSelfAttention(_SelfLayer, t5.T5LayerSelfAttention):
    """`transformers.models.t5.modeling_t5.T5LayerSelfAttention`."""


class GraftedT5LayerCrossAttention(_CrossLayer, t5.T5LayerCrossAttention):
    """`transformers.models.t5.modeling_t5.T5LayerCrossAttention`."""


class GraftedMT5LayerSelfAttention(_SelfLayer, mt5.MT5LayerSelfAttention):
    """`transformers.models.mt5.modeling_mt5.MT5LayerSelfAttention`."""


class GraftedMT5LayerCrossAttention(_CrossLayer, mt5.MT5LayerCrossAttention):
    """`transformers.models.mt5.modeling_mt5.MT5LayerCrossAttention`."""


class _Dense(LinearEnds, MlpSite):
    """Two linear layers without biases; the second may stay in float32 in a model of half precision."""

    linear_names = ("wi", "wo")
    wi: nn.Linear
    wo: nn.Linear
    act: nn.Module
    dropout: nn.Module

    def hidden(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.dropout(self.act(self.wi(x))))

    def out(self, x: Tensor) -> Tensor:
        kind = self.wo.weight.dtype
        return self.wo(x if kind == torch.int8 else x.to(kind))


class GraftedT5DenseActDense(_Dense, t5.T5DenseActDense):
    """`transformers.models.t5.modeling_t5.T5DenseActDense`."""


class GraftedMT5DenseActDense(_Dense, mt5.MT5DenseActDense):
    """`transformers.models.mt5.modeling_mt5.MT5DenseActDense`."""


class GraftedT5DenseGatedActDense(MlpEnds, t5.T5DenseGatedActDense):
    """`transformers.models.t5.modeling_t5.T5DenseGatedActDense`."""


class GraftedMT5DenseGatedActDense(MlpEnds, mt5.MT5DenseGatedActDense):
    """`transformers.models.mt5.modeling_mt5.MT5DenseGatedActDense`."""


class _FeedForward(GraftedModule):
    """What drops behind the MLP and adds what came in."""

    DenseReluDense: Any
    layer_norm: nn.Module
    dropout: nn.Module

    def forward(self, hidden_states: Tensor) -> Tensor:
        """The host's own, with a place at the end."""
        out = self.dropout(self.DenseReluDense(self.layer_norm(hidden_states)))
        return hidden_states + self.run("mlp.end", out)

    def run(self, hook_point: HookPoint, value: Tensor, *context: Tensor | None) -> Tensor:
        """In a model of half precision whose `wo` stayed in float32, as its numbers may be too large, so do the grafts."""
        kind = cast(Tensor, self.layer_norm.weight).dtype
        if value.dtype != torch.float32 or kind not in (torch.float16, torch.bfloat16):
            return super().run(hook_point, value, *context)
        for graft in self.grafts_at(hook_point):
            state = {name: each.float() for name, each in graft.state_dict(keep_vars=True).items()}
            value = cast(Tensor, torch.func.functional_call(graft, state, (value, *context)))
        self.record(hook_point, value)
        return value

    def linear_before(self, hook_point: HookPoint) -> LinearLayer | None:
        return linear(self.DenseReluDense.wo) if hook_point == "mlp.end" else None


class GraftedT5LayerFF(_FeedForward, t5.T5LayerFF):
    """`transformers.models.t5.modeling_t5.T5LayerFF`."""


class GraftedMT5LayerFF(_FeedForward, mt5.MT5LayerFF):
    """`transformers.models.mt5.modeling_mt5.MT5LayerFF`."""


class _Block(GraftedModule):
    """The mask of an encoder comes this far, and not to the MLP: it refuses for the MLP's grafts."""

    layer: nn.ModuleList

    @property
    def in_use(self) -> bool:
        return any(each.grafts for each in self._grafted())

    def _grafted(self) -> list[GraftedModule]:
        return [each for each in self.layer[-1].modules() if isinstance(each, GraftedModule)]

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        """The host's own.

        Raises:
            UsageError: the mask hides tokens, or the call asks for a causal one, and a graft of the MLP averages over all.
        """
        for part in self._grafted():
            check_call(part, padded=hides(attention_mask), causal=bool(kwargs.get("is_causal")))
        return cast(
            tuple[Any, ...],
            super().forward(hidden_states, attention_mask, *args, **kwargs),  # type: ignore[misc]
        )


class GraftedT5Block(_Block, t5.T5Block):
    """`transformers.models.t5.modeling_t5.T5Block`."""


class GraftedMT5Block(_Block, mt5.MT5Block):
    """`transformers.models.mt5.modeling_mt5.MT5Block`."""


class TransformersT5(SequenceFamily):
    """Sites `encoder.block.<i>.layer.0.SelfAttention` and `.layer.1.DenseReluDense`; in `decoder` layer 1 is
    `EncDecAttention`, and the MLP is in layer 2."""

    name = "hf.t5"
    summary = "transformers T5 and mT5: encoder, decoder and cross attention, or the encoder alone"
    patched: ClassVar = {
        t5.T5Attention: GraftedT5Attention,
        t5.T5LayerSelfAttention: GraftedT5LayerSelfAttention,
        t5.T5LayerCrossAttention: GraftedT5LayerCrossAttention,
        t5.T5DenseActDense: GraftedT5DenseActDense,
        t5.T5DenseGatedActDense: GraftedT5DenseGatedActDense,
        t5.T5LayerFF: GraftedT5LayerFF,
        t5.T5Block: GraftedT5Block,
        mt5.MT5Attention: GraftedMT5Attention,
        mt5.MT5LayerSelfAttention: GraftedMT5LayerSelfAttention,
        mt5.MT5LayerCrossAttention: GraftedMT5LayerCrossAttention,
        mt5.MT5DenseActDense: GraftedMT5DenseActDense,
        mt5.MT5DenseGatedActDense: GraftedMT5DenseGatedActDense,
        mt5.MT5LayerFF: GraftedMT5LayerFF,
        mt5.MT5Block: GraftedMT5Block,
    }
    models = tuple(
        getattr(module, f"{name}{head}")
        for module, name in ((t5, "T5"), (mt5, "MT5"))
        for head in (
            "Model",
            "ForConditionalGeneration",
            "EncoderModel",
            "ForQuestionAnswering",
            "ForSequenceClassification",
            "ForTokenClassification",
        )
    )
    layers = (t5.T5Block, mt5.MT5Block)
    inner = ("transformer",)

    def read(self, layer: Any, path: str) -> Iterable[Site]:
        causal = layer.is_decoder
        if causal:
            yield _attention(layer.layer[0], f"{path}.layer.0", "SelfAttention", causal=True)
            yield _attention(layer.layer[1], f"{path}.layer.1", "EncDecAttention", causal=True, cross=True)
        else:
            yield _attention(layer.layer[0], f"{path}.layer.0", "SelfAttention")
        yield _mlp(layer, path, causal=causal)


_OLD = ("use_cache", "output_attentions", "return_dict")
_OF_LAYERS = ("hidden_states", "attention_mask", "position_bias", CACHE, "kwargs", *_OLD)


def _attention(layer: Any, path: str, name: str, **known: Any) -> Site:
    arguments = ("key_value_states",)
    check_known(layer, path, arguments=(*_OF_LAYERS, *arguments), children=(name, "layer_norm", "dropout"))
    attention = layer.get_submodule(name)
    # its table serves the layers behind it too: grafts that leave the scores of this one without use do not leave that
    return attention_site(
        attention,
        f"{path}.{name}",
        end=path,
        out="o",
        projections=("q", "k", "v"),
        width="key_value_proj_dim",
        arguments=("mask", *arguments, "position_bias", CACHE, "output_attentions"),
        children=("relative_attention_bias",),
        dim=attention.d_model,
        projection=Projection(bias=False),
        **known,
    )


def _mlp(block: Any, path: str, *, causal: bool) -> Site:
    encoder = ("encoder_hidden_states", "encoder_attention_mask", "encoder_decoder_position_bias")
    check_known(block, path, arguments=(*_OF_LAYERS, *encoder), children=("layer",))
    last, dense = block.layer[-1], block.layer[-1].DenseReluDense
    outer = f"{path}.layer.{len(block.layer) - 1}"
    inner = f"{outer}.DenseReluDense"
    gated = hasattr(dense, "wi_0")
    check_known(last, outer, arguments=("hidden_states",), children=("DenseReluDense", "layer_norm", "dropout"))
    check_known(
        dense,
        inner,
        arguments=("hidden_states", "x"),
        children=(*(("wi_0", "wi_1") if gated else ("wi",)), "wo", "act", "dropout"),
    )
    geometry = MlpGeometry(dim=dense.wo.out_features, hidden=dense.wo.in_features, causal=causal)
    return mlp_site(inner, geometry, NO_MIDDLE if gated else {}, end=outer, layer=None if causal else path)


register_host(TransformersT5())
