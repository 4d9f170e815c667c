"""Host adapter of the meshed-memory captioner."""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attngraft.attention import AttentionGeometry, MlpGeometry
from attngraft.hosts.adapter import HostAdapter, Site
from attngraft.hosts.patched import MaskedParts
from attngraft.hosts.sites import global_site, mlp_site, projected_heads
from attngraft.hosts.timm import mlp
from attngraft.models.captioning.model import REGIONS, Attention, EncoderLayer, M2Transformer
from attngraft.models.translation import host as translation

_SLOTS = "its keys include memory slots, which are no tokens and have no queries; use horizontal or vertical"


class GraftedAttention(translation.GraftedAttention, Attention):
    """`Attention` with hook points. Maps of the encoder include the slots of the memory, after the regions."""


class GraftedEncoderLayer(MaskedParts, EncoderLayer):
    """`EncoderLayer`, which checks the padding mask for the grafts of its MLP."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Run the layer.

        Raises:
            UsageError: regions are hidden, and a graft of the MLP averages over all regions.
        """
        self.check_parts(padded=bias is not None)
        return EncoderLayer.forward(self, x, bias)


class CaptioningHost(HostAdapter):
    """Sites `encoder.<i>.self_attn` and `.mlp`, `decoder.<i>.self_attn`, `.cross_attn` and `.mlp`.

    Cross-attention runs once for all levels of the encoder, which are its sequences.
    """

    name = "captioning"
    summary = "the meshed-memory captioner of any size (attngraft's own m2_transformer)"
    patched: ClassVar = {**mlp.PATCHED, Attention: GraftedAttention, EncoderLayer: GraftedEncoderLayer}

    def recognizes(self, model: nn.Module) -> bool:
        return type(model) is M2Transformer

    def sites(self, model: Any) -> list[Site]:
        return list(self._sites(model))

    def _sites(self, model: Any) -> Iterator[Site]:
        for index, layer in enumerate(model.encoder):
            path = f"encoder.{index}"
            yield _memory_site(layer.self_attn, f"{path}.self_attn")
            yield mlp_site(f"{path}.mlp", _mlp_geometry(layer.mlp, tokens=REGIONS), layer=path)
        for index, layer in enumerate(model.decoder):
            path = f"decoder.{index}"
            own = _geometry(layer.self_attn, causal=True)
            levels = _geometry(layer.cross_attn, causal=True, cross=True, sequences=len(model.encoder))
            yield global_site(f"{path}.self_attn", own)
            yield global_site(f"{path}.cross_attn", levels)
            yield mlp_site(f"{path}.mlp", _mlp_geometry(layer.mlp, causal=True))

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        weight = model.embed_regions.weight
        ids = torch.randint(model.head.out_features - 1, (batch, min(10, len(model.positions))))
        features = torch.randn(batch, REGIONS, weight.shape[1]).to(weight)
        return features, (ids + (ids >= model.pad)).to(weight.device)


def _geometry(module: Any, **fields: Any) -> AttentionGeometry:
    dim = module.q.in_features
    heads = projected_heads(module, {"q": "q", "k": "k", "v": "v"}, width=dim // module.num_heads)
    return AttentionGeometry(dim=dim, init="xavier_uniform", **heads, **fields)


def _memory_site(module: Any, path: str) -> Site:
    if not module.slots:
        return global_site(path, _geometry(module, tokens=REGIONS))
    keys = REGIONS + module.slots
    geometry = _geometry(module, tokens=REGIONS, key_tokens=keys, query_key_parameters=("memory_k",))
    return global_site(path, geometry, {"mix": _SLOTS})


def _mlp_geometry(module: Any, **fields: Any) -> MlpGeometry:
    hidden, dim = module.fc1.weight.shape
    return MlpGeometry(dim=dim, hidden=hidden, init="xavier_uniform", **fields)
