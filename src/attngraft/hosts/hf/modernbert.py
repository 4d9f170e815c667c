"""Hugging Face's ModernBERT: one projection of q, k and v, rotary positions, and layers that see only what is near."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers.models.modernbert import modeling_modernbert as modernbert

from attngraft.attention import CLASS, AttentionGeometry, Graft, GraftedModule, HookPoint, LinearLayer, MlpGeometry
from attngraft.hosts.adapter import Site, check_known, fused_rows
from attngraft.hosts.hf.attention import shown, unspelled
from attngraft.hosts.hf.family import TextFamily
from attngraft.hosts.hf.mlp import Gated, MaskedLayer
from attngraft.hosts.hf.rotary import RotarySite
from attngraft.hosts.linear_ends import linear
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import GLOBAL, NO_MIDDLE, global_site, mlp_site


class GraftedModernBertAttention(RotarySite, modernbert.ModernBertAttention):
    """`transformers.models.modernbert.modeling_modernbert.ModernBertAttention`."""

    rotary = modernbert
    out = "Wo"
    out_drop: nn.Module

    @property
    def scale(self) -> float:  # type: ignore[override]
        """What the scores are multiplied by."""
        return cast(float, self.head_dim**-0.5)

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The sentence."""
        return super().forward(hidden_states, attention_mask, position_embeddings=position_embeddings, **kwargs)

    def check(self, mask: Tensor | None) -> None:
        super().check(padding(mask, self.sliding_window is not None, self))

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.Wqkv(x).view(*x.shape[:-1], 3, -1, self.head_dim).transpose(1, 3).unbind(dim=2)
        return q, k, v

    def drop(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.out_drop(tokens))


class GraftedModernBertMLP(Gated, modernbert.ModernBertMLP):
    """`transformers.models.modernbert.modeling_modernbert.ModernBertMLP`."""

    def linear_before(self, hook_point: HookPoint) -> LinearLayer | None:
        return linear(self.Wo) if hook_point == "mlp.end" else None


class GraftedModernBertEncoderLayer(MaskedLayer, modernbert.ModernBertEncoderLayer):
    """`transformers.models.modernbert.modeling_modernbert.ModernBertEncoderLayer`."""

    attention_type: str

    def check(self, mask: Tensor | None, *, causal: bool | None = None) -> None:
        super().check(padding(mask, self.attention_type == "sliding_attention", self.mlp), causal=causal)


def padding(mask: Tensor | None, near: bool, module: Any) -> Tensor | None:
    """`mask`, if it may hide a token from all others: one of `near` layers hides what is far, with padding and without.

    Its values are looked at where a graft of `module` must know, and not while a program is compiled: it may hide some then.
    """
    if mask is None or not near or torch.compiler.is_compiling():
        return mask
    if not (isinstance(module, GraftedModule) and any(_refuses(graft) for graft in module.grafts.values())):
        return mask
    return None if bool(shown(mask).flatten(1, -2).any(dim=1).all()) else mask


def _refuses(graft: nn.Module) -> bool:
    return "padded" in cast(Graft, graft).refuses


class TransformersModernbert(TextFamily):
    """Sites `layers.<i>.attn` and `layers.<i>.mlp`."""

    name = "hf.modernbert"
    summary = "transformers ModernBERT (without a head, and with any of its heads)"
    patched: ClassVar = {
        modernbert.ModernBertAttention: GraftedModernBertAttention,
        modernbert.ModernBertMLP: GraftedModernBertMLP,
        modernbert.ModernBertEncoderLayer: GraftedModernBertEncoderLayer,
    }
    models = (
        modernbert.ModernBertModel,
        modernbert.ModernBertForMaskedLM,
        modernbert.ModernBertForSequenceClassification,
        modernbert.ModernBertForTokenClassification,
        modernbert.ModernBertForQuestionAnswering,
        modernbert.ModernBertForMultipleChoice,
    )
    several = (modernbert.ModernBertForMultipleChoice,)
    layers = (modernbert.ModernBertEncoderLayer,)
    inner = ("model",)
    heads = (*TextFamily.heads, "head", "decoder")

    def read(self, layer: Any, path: str) -> Iterable[Site]:
        arguments = ("hidden_states", "attention_mask", "position_embeddings", "kwargs")
        attn, mlp = layer.attn, layer.mlp
        check_known(layer, path, arguments=arguments, children=("attn_norm", "attn", "mlp_norm", "mlp"))
        check_known(attn, f"{path}.attn", arguments=arguments, children=("Wqkv", "Wo", "out_drop"))
        check_known(mlp, f"{path}.mlp", arguments=("hidden_states",), children=("Wi", "act", "drop", "Wo"))
        known: dict[str, Any] = {"dim": attn.Wqkv.in_features, "prefix": CLASS}
        yield _attention_site(attn, f"{path}.attn", known)
        yield mlp_site(f"{path}.mlp", MlpGeometry(**known, hidden=mlp.Wo.in_features), NO_MIDDLE, layer=path)


def _attention_site(attn: Any, path: str, known: dict[str, Any]) -> Site:
    heads = attn.Wqkv.in_features // attn.head_dim
    geometry = AttentionGeometry(
        **known,
        heads=heads,
        key_width=attn.head_dim,
        value_width=attn.head_dim,
        rows=fused_rows(attn, "Wqkv", heads=heads),
    )
    refusal = unspelled(attn.config._attn_implementation)
    return global_site(path, geometry, dict.fromkeys(GLOBAL, refusal) if refusal else {})


register_host(TransformersModernbert())
