"""Hugging Face's Marian and BART: an encoder and a decoder, whose layers hold their MLP piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.bart import modeling_bart as bart
from transformers.models.marian import modeling_marian as marian

from attngraft.attention import GraftedModule, MlpGeometry, MlpSite
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.calls import check_call
from attngraft.hosts.hf.attention import attention_site, hides
from attngraft.hosts.hf.decoder import CACHE, CachingSite, SequenceFamily, kept
from attngraft.hosts.linear_ends import LinearEnds
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import mlp_site


class _Attention(CachingSite):
    out, rate, precise = "out_proj", "dropout", False

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        *,
        drop: Callable[[Tensor], Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The sentence; `drop` is the dropout of the layer around, which then leaves it to us."""
        given = {"key_value_states": key_value_states, "past_key_values": past_key_values, **kwargs}
        return self.attended(hidden_states, attention_mask, drop=drop, **given)[:2]


class GraftedMarianAttention(_Attention, marian.MarianAttention):
    """`transformers.models.marian.modeling_marian.MarianAttention`."""


class GraftedBartAttention(_Attention, bart.BartAttention):
    """`transformers.models.bart.modeling_bart.BartAttention`."""


class _Layer(LinearEnds, MlpSite):
    """What all layers share: an MLP in two linear layers of their own, one share for all that leaves a branch."""

    self_attn: nn.Module
    self_attn_layer_norm: nn.Module
    encoder_attn: nn.Module
    encoder_attn_layer_norm: nn.Module
    final_layer_norm: nn.Module
    fc1: nn.Linear
    fc2: nn.Linear
    activation_fn: Callable[[Tensor], Tensor]
    dropout: float
    activation_dropout: float
    training: bool

    @property
    def in_use(self) -> bool:
        return any(isinstance(each, GraftedModule) and bool(each.grafts) for each in cast(nn.Module, self).modules())

    def hidden(self, x: Tensor) -> Tensor:
        return F.dropout(self.activation_fn(self.fc1(x)), p=self.activation_dropout, training=self.training)

    def out(self, x: Tensor) -> Tensor:
        return self.dropped(self.fc2(x))

    def dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, p=self.dropout, training=self.training)

    def branch(self, attention: nn.Module, x: Tensor, **given: Any) -> Tensor:
        """An attention and the dropout behind it, which one with grafts does by itself, for those that stand behind."""
        if isinstance(attention, GraftedModule):
            return cast(Tensor, attention(x, drop=self.dropped, **given)[0])
        return self.dropped(attention(x, **given)[0])

    def mlp(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.final_layer_norm(x + MlpSite.forward(self, x)))


class _EncoderLayer(_Layer):
    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None, **kwargs: Any) -> Tensor:  # type: ignore[override]
        """The host's own, with places at the ends of its branches.

        Raises:
            UsageError: the mask hides tokens, or the call asks for a causal one, and a graft of the MLP averages over all.
        """
        check_call(self, padded=hides(attention_mask), causal=bool(kwargs.get("is_causal")))
        attended = self.branch(self.self_attn, hidden_states, attention_mask=attention_mask, **kwargs)
        x = self.mlp(self.self_attn_layer_norm(hidden_states + attended))
        if x.dtype == torch.float16 and not torch.isfinite(x).all():
            most = torch.finfo(x.dtype).max - 1000
            x = torch.clamp(x, min=-most, max=most)
        return x


class _DecoderLayer(_Layer):
    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = True,
        **kwargs: Any,
    ) -> Tensor:
        """The host's own, with places at the ends of its branches."""
        given = {CACHE: kept(past_key_values, kwargs), **kwargs}
        attended = self.branch(self.self_attn, hidden_states, attention_mask=attention_mask, **given)
        x = self.self_attn_layer_norm(hidden_states + attended)
        if encoder_hidden_states is not None:
            given |= {"key_value_states": encoder_hidden_states, "attention_mask": encoder_attention_mask}
            x = self.encoder_attn_layer_norm(x + self.branch(self.encoder_attn, x, **given))
        return self.mlp(x)


class GraftedMarianEncoderLayer(_EncoderLayer, marian.MarianEncoderLayer):
    """`transformers.models.marian.modeling_marian.MarianEncoderLayer`."""


class GraftedMarianDecoderLayer(_DecoderLayer, marian.MarianDecoderLayer):
    """`transformers.models.marian.modeling_marian.MarianDecoderLayer`."""


class GraftedBartEncoderLayer(_EncoderLayer, bart.BartEncoderLayer):
    """`transformers.models.bart.modeling_bart.BartEncoderLayer`."""


class GraftedBartDecoderLayer(_DecoderLayer, bart.BartDecoderLayer):
    """`transformers.models.bart.modeling_bart.BartDecoderLayer`."""


_CHILDREN = ("self_attn", "self_attn_layer_norm", "activation_fn", "fc1", "fc2", "final_layer_norm")
_OF_DECODERS = ("encoder_attn", "encoder_attn_layer_norm")
_ARGUMENTS = ("hidden_states", "attention_mask", "kwargs")
_ALSO = ("encoder_hidden_states", "encoder_attention_mask", CACHE, "use_cache")


class TransformersMarian(SequenceFamily):
    """Sites `encoder.layers.<i>.self_attn` and `.fc1` (the MLP), the same of `decoder`, and its `.encoder_attn`."""

    name = "hf.marian"
    summary = "transformers Marian and BART: encoder, decoder and cross attention"
    patched: ClassVar = {
        marian.MarianAttention: GraftedMarianAttention,
        marian.MarianEncoderLayer: GraftedMarianEncoderLayer,
        marian.MarianDecoderLayer: GraftedMarianDecoderLayer,
        bart.BartAttention: GraftedBartAttention,
        bart.BartEncoderLayer: GraftedBartEncoderLayer,
        bart.BartDecoderLayer: GraftedBartDecoderLayer,
    }
    models = (
        marian.MarianModel,
        marian.MarianMTModel,
        bart.BartModel,
        bart.BartForConditionalGeneration,
        bart.BartForSequenceClassification,
        bart.BartForQuestionAnswering,
    )
    layers = (
        marian.MarianEncoderLayer,
        marian.MarianDecoderLayer,
        bart.BartEncoderLayer,
        bart.BartDecoderLayer,
    )
    inner = ("model",)

    def read(self, layer: Any, path: str) -> Iterable[Site]:
        decodes = hasattr(layer, "encoder_attn")
        check_known(
            layer,
            path,
            arguments=(*_ARGUMENTS, *(_ALSO if decodes else ())),
            children=(*_CHILDREN, *(_OF_DECODERS if decodes else ())),
        )
        yield _attention(layer, path, "self_attn", causal=decodes)
        if decodes:
            yield _attention(layer, path, "encoder_attn", causal=True, cross=True)
        geometry = MlpGeometry(dim=layer.embed_dim, hidden=layer.fc1.out_features, causal=decodes)
        yield replace(mlp_site(path, geometry), path=f"{path}.fc1")


def _attention(layer: Any, path: str, name: str, **known: Any) -> Site:
    return attention_site(
        layer.get_submodule(name),
        f"{path}.{name}",
        end=f"{path}.{name}",
        ending=path,
        out="out_proj",
        arguments=("key_value_states", CACHE),
        dim=layer.embed_dim,
        **known,
    )


register_host(TransformersMarian())
