"""Host adapter of the translation Transformer."""

from collections.abc import Iterator
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from attngraft.attention import (
    AttentionGeometry,
    AttentionSite,
    LinearLayer,
    MlpGeometry,
    Projected,
    Projection,
    attended_keys,
)
from attngraft.errors import UsageError
from attngraft.hosts.adapter import HostAdapter, Site
from attngraft.hosts.patched import MaskedParts, check_call
from attngraft.hosts.sites import global_site, mlp_site, projected_heads
from attngraft.hosts.timm import mlp
from attngraft.models.translation.model import Attention, EncoderLayer, KeysValues, TranslationTransformer

_LENGTHS = 12, 10  #: tokens of example sources and targets


class GraftedAttention(AttentionSite, Attention):
    """`Attention` with hook points. Grafts get the tokens of the current call, and maps over all keys."""

    fused_attn = True

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        causal: bool = False,
        past: KeysValues | None = None,
    ) -> tuple[Tensor, KeysValues]:
        """Run the template.

        Raises:
            UsageError: in an encoder, tokens are hidden and a graft averages over all tokens.
        """
        if not self.cross and not causal and past is None:
            check_call(self, padded=bias is not None, exempt=("mix",))
        projected = self.project(x, memory, bias, causal, past)

        def again(tokens: Tensor) -> Projected:
            if past is not None:
                raise UsageError(
                    "a graft projects other tokens, for which the cache has no earlier keys; call decode without a cache"
                )
            return self.project(tokens, memory, bias, causal)

        return self.forward_projected(projected, again), (projected.k, projected.v)

    def project(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        past: KeysValues | None = None,
    ) -> Projected:
        k, v = self.keys_values(x if memory is None else memory, past)
        present = (bias == 0)[:, 0, 0] if bias is not None and self.grafts_at("mix") else None
        q = self.split(self.q(x))
        return Projected(q, k, v, x, bias=bias, causal=causal, keys=memory, present=present)

    def visible(self, projected: Projected) -> Tensor | None:
        bias = projected.bias
        return super().visible(projected) if bias is None else attended_keys(bias == 0, bias)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return cast(Tensor, self.proj(heads.transpose(1, 2).flatten(2)))

    def drop(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.proj_drop(tokens))

    def output_layer(self) -> LinearLayer | None:
        return self.proj


class GraftedEncoderLayer(MaskedParts, EncoderLayer):
    """`EncoderLayer`, which checks the padding mask for the grafts of its MLP."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Run the layer.

        Raises:
            UsageError: tokens are hidden, and a graft of the MLP averages over all tokens.
        """
        self.check_parts(padded=bias is not None)
        return EncoderLayer.forward(self, x, bias)


class TranslationHost(HostAdapter):
    """Sites `encoder.<i>.self_attn` and `.mlp`, `decoder.<i>.self_attn`, `.cross_attn` and `.mlp`."""

    name = "translation"
    summary = "the HV paper's translation Transformer of any size (attngraft's own mt_transformer)"
    patched: ClassVar = {**mlp.PATCHED, Attention: GraftedAttention, EncoderLayer: GraftedEncoderLayer}

    def recognizes(self, model: nn.Module) -> bool:
        return type(model) is TranslationTransformer

    def sites(self, model: Any) -> list[Site]:
        return list(self._sites(model))

    def _sites(self, model: Any) -> Iterator[Site]:
        for stack in ("encoder", "decoder"):
            for index, layer in enumerate(getattr(model, stack)):
                path, causal = f"{stack}.{index}", stack == "decoder"
                yield _attention_site(layer.self_attn, f"{path}.self_attn", causal=causal)
                if causal:
                    yield _attention_site(layer.cross_attn, f"{path}.cross_attn", causal=True, cross=True)
                hidden, dim = layer.mlp.fc1.weight.shape
                geometry = MlpGeometry(dim=dim, hidden=hidden, causal=causal, init="xavier_uniform")
                yield mlp_site(f"{path}.mlp", geometry, layer=None if causal else path)

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        source, target = (
            torch.randint(model.head.out_features - 1, (batch, min(length, len(model.positions))))
            for length in _LENGTHS
        )
        source, target = ((ids + (ids >= model.pad)).to(model.embed.weight.device) for ids in (source, target))
        return source, torch.ones_like(source), target


def _attention_site(module: Any, path: str, **fields: Any) -> Site:
    dim = module.q.in_features
    heads = projected_heads(module, {"q": "q", "k": "k", "v": "v"}, width=dim // module.num_heads)
    geometry = AttentionGeometry(dim=dim, init="xavier_uniform", projection=Projection(bias=False), **heads, **fields)
    return global_site(path, geometry)
