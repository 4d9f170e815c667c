"""torch's own transformer modules: one of them, a stack, `nn.Transformer`, or all of them in a user's model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attngraft.attention import is_graft, plain_class
from attngraft.errors import HostError
from attngraft.hosts.adapter import HostAdapter, Site, norm_state
from attngraft.hosts.family import Sites
from attngraft.hosts.sites import MLP
from attngraft.hosts.torch_nn.attention import GraftedMultiheadAttention, attention_site
from attngraft.hosts.torch_nn.layers import (
    GraftedDecoderLayer,
    GraftedEncoder,
    GraftedEncoderLayer,
    decoder_layer_sites,
    encoder_layer_sites,
    unread_site,
)

_LENGTH = 7  #: tokens of an example input: these modules have no length of their own


class TorchNN(HostAdapter):
    """Sites `<layer>.self_attn`, `<layer>.multihead_attn` and `<layer>.linear1` (the MLP), and every other attention.

    The site of an attention that is the whole host is `attention`.
    """

    name = "torch.nn"
    summary = "torch.nn Transformer, its encoders, decoders, layers and MultiheadAttention, in a model of your own too"
    gathers = True
    patched: ClassVar = {
        nn.MultiheadAttention: GraftedMultiheadAttention,
        nn.TransformerEncoderLayer: GraftedEncoderLayer,
        nn.TransformerDecoderLayer: GraftedDecoderLayer,
        nn.TransformerEncoder: GraftedEncoder,
    }
    models: ClassVar = (*patched, nn.TransformerDecoder, nn.Transformer)

    def recognizes(self, model: nn.Module) -> bool:
        return plain_class(model) in self.models

    def sites(self, model: nn.Module) -> list[Site]:
        return list(self._sites(model))

    def _sites(self, model: nn.Module) -> Sites:
        stacks: list[str] = []
        read: set[nn.Module] = set()
        for path, module in model.named_modules():
            kind = plain_class(module)
            if is_graft(path) or module in read:
                continue
            if kind is nn.TransformerEncoder:
                stacks.append(path)
            elif kind is nn.TransformerEncoderLayer:
                around = tuple(stack for stack in stacks if not stack or path.startswith(f"{stack}."))
                yield from encoder_layer_sites(module, path, around)
                read.add(module.get_submodule("self_attn"))
            elif kind is nn.TransformerDecoderLayer:
                yield from decoder_layer_sites(module, path)
                read |= {module.get_submodule("self_attn"), module.get_submodule("multihead_attn")}
            elif kind is nn.MultiheadAttention:
                yield self._attention_elsewhere(model, module, path)

    def _attention_elsewhere(self, model: nn.Module, module: nn.Module, path: str) -> Site:
        """Return the site of an attention in a block of the user's own."""
        block = model.get_submodule(path.rpartition(".")[0])
        if isinstance(block, nn.TransformerEncoderLayer) and path:
            why = (
                f"it is in a {type(block).__name__}, which inherits torch's fast path that may bypass its attention; use "
                "nn.TransformerEncoderLayer itself, or write an adapter"
            )
            return unread_site(module, path, why)
        no_mlp = "torch.nn.MultiheadAttention has no MLP; use at=attention, or attention grafts"
        site = attention_site(module, path or "attention", target=path)
        return replace(site, missing={**site.missing, **dict.fromkeys(MLP, no_mlp)})

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        kind = plain_class(model)
        attention = next(each for each in model.modules() if plain_class(each) is nn.MultiheadAttention)
        if kind not in self.models:
            raise HostError(
                f"attngraft found torch's attention in a {kind.__name__}, whose inputs are unknown; leave out measure, or "
                "write an adapter"
            )

        def tokens(width: int, number: int = _LENGTH) -> Tensor:
            parameter = next(model.parameters())
            shape = (batch, number, width) if attention.batch_first else (number, batch, width)
            return torch.randn(shape, device=parameter.device, dtype=parameter.dtype)

        x = tokens(attention.embed_dim)
        if kind is nn.MultiheadAttention:
            same = attention._qkv_same_embed_dim
            return (x, x, x) if same else (x, tokens(attention.kdim), tokens(attention.vdim))
        if kind in (nn.TransformerEncoder, nn.TransformerEncoderLayer):
            return (x,)
        return x, tokens(attention.embed_dim, _LENGTH - 2)

    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        return {"head": (), "norms": norm_state(model)}
