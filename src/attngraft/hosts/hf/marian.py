"""Hugging Face's Marian, BART, mBART and M2M100: layers that contain the MLP's linear layers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.attention import GraftedModule, MlpGeometry, MlpSite
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.family import ShapeProbe, Sites
from attngraft.hosts.hf.attention import attention_site, hides_tokens
from attngraft.hosts.hf.decoder import CACHE, CachingSite, pop_cache
from attngraft.hosts.patched import TwoLinearEnds, check_call, has_grafts
from attngraft.hosts.sites import mlp_site


class Attention(CachingSite):
    """Attention of these models; the layer's dropout `drop` is applied before grafts at `attn.end`."""

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
        given = {"key_value_states": key_value_states, "past_key_values": past_key_values, **kwargs}
        return self.run_attention(hidden_states, attention_mask, drop=drop, **given)[:2]


class Layer(TwoLinearEnds, MlpSite):
    """Base of encoder and decoder layers: the MLP's two linear layers, and the dropout after each branch."""

    norm_first: ClassVar[bool] = False  #: whether each branch starts with its norm; otherwise the norm is after the sum
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
        return has_grafts(cast(nn.Module, self))

    def hidden(self, x: Tensor) -> Tensor:
        return F.dropout(self.activation_fn(self.fc1(x)), p=self.activation_dropout, training=self.training)

    def out(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(x))

    def drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, p=self.dropout, training=self.training)

    def attention(self, module: nn.Module, norm: nn.Module, x: Tensor, **given: Any) -> Tensor:
        """Add the output of an attention module after dropout, which patched attention applies itself."""
        if isinstance(module, GraftedModule):
            return self.add(lambda x: module(x, drop=self.drop, **given)[0], norm, x)
        return self.add(lambda x: self.drop(module(x, **given)[0]), norm, x)

    def mlp(self, x: Tensor) -> Tensor:
        return self.add(lambda x: MlpSite.forward(self, x), self.final_layer_norm, x)

    def add(self, branch: Callable[[Tensor], Tensor], norm: nn.Module, x: Tensor) -> Tensor:
        return x + branch(norm(x)) if self.norm_first else cast(Tensor, norm(x + branch(x)))


class EncoderLayer(Layer):
    """The host's encoder layer with hook points."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None, **kwargs: Any) -> Tensor:  # type: ignore[override]
        """Run the layer.

        Raises:
            UsageError: the mask hides tokens, or the call is causal, and a graft of the MLP averages over all tokens.
        """
        check_call(self, padded=hides_tokens(attention_mask), causal=bool(kwargs.get("is_causal")))
        given = {"attention_mask": attention_mask, **kwargs}
        x = self.mlp(self.attention(self.self_attn, self.self_attn_layer_norm, hidden_states, **given))
        if x.dtype == torch.float16 and (self.norm_first or not torch.isfinite(x).all()):
            most = torch.finfo(x.dtype).max - 1000
            x = torch.clamp(x, min=-most, max=most)
        return x


class DecoderLayer(Layer):
    """The host's decoder layer with hook points."""

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
        given = {CACHE: pop_cache(past_key_values, kwargs), **kwargs}
        x = self.attention(
            self.self_attn, self.self_attn_layer_norm, hidden_states, attention_mask=attention_mask, **given
        )
        if encoder_hidden_states is not None:
            given |= {"key_value_states": encoder_hidden_states, "attention_mask": encoder_attention_mask}
            x = self.attention(self.encoder_attn, self.encoder_attn_layer_norm, x, **given)
        return self.mlp(x)


class NormFirstEncoderLayer(EncoderLayer):
    """Encoder layer of mBART and M2M100."""

    norm_first = True


class NormFirstDecoderLayer(DecoderLayer):
    """Decoder layer of mBART and M2M100."""

    norm_first = True


_CHILDREN = ("self_attn", "self_attn_layer_norm", "activation_fn", "fc1", "fc2", "final_layer_norm")
_ARGUMENTS = ("hidden_states", "attention_mask", "kwargs")


def encoder_sites(layer: Any, path: str, shapes: ShapeProbe) -> Sites:
    """Yield the sites `self_attn` and `fc1` (the MLP) of an encoder layer."""
    check_known(layer, path, arguments=_ARGUMENTS, children=_CHILDREN)
    yield _attention_site(layer, path, "self_attn")
    yield _mlp_site(layer, path)


def decoder_sites(layer: Any, path: str, shapes: ShapeProbe) -> Sites:
    """Yield the sites `self_attn`, `encoder_attn` and `fc1` (the MLP) of a decoder layer."""
    arguments = (*_ARGUMENTS, "encoder_hidden_states", "encoder_attention_mask", CACHE, "use_cache")
    check_known(layer, path, arguments=arguments, children=(*_CHILDREN, "encoder_attn", "encoder_attn_layer_norm"))
    yield _attention_site(layer, path, "self_attn", causal=True)
    yield _attention_site(layer, path, "encoder_attn", causal=True, cross=True)
    yield _mlp_site(layer, path, causal=True)


def _attention_site(layer: Any, path: str, name: str, **fields: Any) -> Site:
    return attention_site(
        layer.get_submodule(name),
        f"{path}.{name}",
        Attention,
        dropout_layer=path,
        arguments=("key_value_states", CACHE),
        dim=layer.embed_dim,
        **fields,
    )


def _mlp_site(layer: Any, path: str, **fields: Any) -> Site:
    geometry = MlpGeometry(dim=layer.embed_dim, hidden=layer.fc1.out_features, **fields)
    return replace(mlp_site(path, geometry), path=f"{path}.fc1")
