"""Hugging Face's ModernBERT: fused qkv projection, rotary positions, layers with local attention."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.models.modernbert import modeling_modernbert as modernbert

from attngraft.attention import (
    CLASS,
    AttentionGeometry,
    Graft,
    GraftedModule,
    HookPoint,
    LinearLayer,
    MlpEnds,
    MlpGeometry,
    visible_in,
)
from attngraft.hosts.adapter import check_known
from attngraft.hosts.family import ShapeProbe, Sites
from attngraft.hosts.hf.attention import RotarySite, unsupported
from attngraft.hosts.hf.mlp import MaskedLayer
from attngraft.hosts.patched import as_linear, present_in
from attngraft.hosts.sites import GLOBAL, NO_MIDDLE, fused_heads, global_site, mlp_site


class ModernBertAttention(RotarySite):
    """`ModernBertAttention`: a fused projection, and dropout after the output projection."""

    rotary = modernbert
    out = "Wo"
    Wqkv: nn.Module
    out_drop: nn.Module
    head_dim: int
    sliding_window: int | None

    @property
    def scale(self) -> float:  # type: ignore[override]
        return cast(float, self.head_dim**-0.5)

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        return super().forward(hidden_states, attention_mask, position_embeddings=position_embeddings, **kwargs)

    def check_mask(self, mask: Tensor | None) -> None:
        super().check_mask(padding_of(mask, self.sliding_window is not None, self))

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.Wqkv(x).view(*x.shape[:-1], 3, -1, self.head_dim).transpose(1, 3).unbind(dim=2)
        return q, k, v

    def drop(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.out_drop(tokens))


class ModernBertMlp(MlpEnds):
    """`ModernBertMLP`, a gated MLP."""

    Wo: nn.Module

    def linear_before(self, hook_point: HookPoint) -> LinearLayer | None:
        return as_linear(self.Wo) if hook_point == "mlp.end" else None


class ModernBertLayer(MaskedLayer):
    """`ModernBertEncoderLayer`, whose mask also hides distant tokens if its attention is local."""

    attention_type: str
    mlp: nn.Module

    def check_mask(self, mask: Tensor | None, *, causal: bool | None = None) -> None:
        super().check_mask(padding_of(mask, self.attention_type == "sliding_attention", self.mlp), causal=causal)


def padding_of(mask: Tensor | None, local: bool, module: Any) -> Tensor | None:
    """Return `mask` if it may hide a token from all queries, otherwise None.

    The mask of a `local` layer also hides distant tokens. Its values are read only if a graft of `module` refuses padding.
    While compiling they cannot be read, and `mask` is returned.
    """
    if mask is None or not local or torch.compiler.is_compiling():
        return mask
    grafts = module.grafts.values() if isinstance(module, GraftedModule) else ()
    if not any("padded" in cast(Graft, graft).refuses for graft in grafts):
        return mask
    return None if bool(present_in(visible_in(mask)).all()) else mask


def modernbert_sites(layer: Any, path: str, shapes: ShapeProbe) -> Sites:
    """Yield the sites `attn` and `mlp` of a layer."""
    arguments = ("hidden_states", "attention_mask", "position_embeddings", "kwargs")
    attn, mlp = layer.attn, layer.mlp
    check_known(layer, path, arguments=arguments, children=("attn_norm", "attn", "mlp_norm", "mlp"))
    check_known(attn, f"{path}.attn", arguments=arguments, children=("Wqkv", "Wo", "out_drop"))
    check_known(mlp, f"{path}.mlp", arguments=("hidden_states",), children=("Wi", "act", "drop", "Wo"))
    fields: dict[str, Any] = {"dim": attn.Wqkv.in_features, "prefix": CLASS}
    heads = attn.Wqkv.in_features // attn.head_dim
    geometry = AttentionGeometry(**fields, **fused_heads(attn, "Wqkv", heads=heads))
    refusal = unsupported(attn.config._attn_implementation)
    yield global_site(f"{path}.attn", geometry, dict.fromkeys(GLOBAL, refusal) if refusal else {})
    yield mlp_site(f"{path}.mlp", MlpGeometry(**fields, hidden=mlp.Wo.in_features), NO_MIDDLE, layer=path)
