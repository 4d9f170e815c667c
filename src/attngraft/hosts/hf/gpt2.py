"""Hugging Face's GPT-2: fused projections with transposed weights, and cross-attention as a decoder."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from attngraft.attention import AttentionGeometry, HookPoint, LinearLayer, MlpGeometry, Projected
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.family import ShapeProbe, Sites
from attngraft.hosts.hf.attention import unsupported
from attngraft.hosts.hf.decoder import CACHE, CachingSite
from attngraft.hosts.patched import StepMlp
from attngraft.hosts.sites import global_site, mlp_site, refused_site

_ARGUMENTS = (
    *("hidden_states", CACHE, "attention_mask", "encoder_hidden_states", "encoder_attention_mask"),
    *("use_cache", "output_attentions", "kwargs"),
)
_NO_WEIGHTS: Mapping[HookPoint, str] = {
    "weights": "its projections have transposed weights, in which heads are columns; use horizontal or vertical"
}
_UPCAST = "it computes the scores in another order (reorder_and_upcast_attn=True); set it to False in the configuration"


class Attention(CachingSite):
    """Self-attention with `c_attn` for q, k and v; or cross-attention with `q_attn`, and `c_attn` for k and v."""

    out, rate, precise = "c_proj", "attn_dropout", False
    is_decoder = True
    is_cross_attention: bool
    c_attn: nn.Module
    q_attn: nn.Module
    resid_dropout: nn.Module
    split_size: int
    head_dim: int

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        mask = encoder_attention_mask if self.is_cross_attention else attention_mask
        given = {"key_value_states": encoder_hidden_states, "past_key_values": past_key_values, **kwargs}
        return self.run_attention(hidden_states, mask, **given)[:2]

    def project(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> Projected:
        if self.is_cross_attention:
            (q,) = self._heads(self.q_attn(x))
            return self.with_keys(
                x,
                q,
                lambda: self._heads(self.c_attn(key_value_states)),
                attention_mask,
                key_value_states,
                past_key_values,
                **kwargs,
            )
        q, *keys = self._heads(self.c_attn(x))
        return self.with_keys(x, q, lambda: tuple(keys), attention_mask, None, past_key_values, **kwargs)

    def _heads(self, fused: Tensor) -> tuple[Tensor, ...]:
        parts = fused.split(self.split_size, dim=2)
        return tuple(part.unflatten(2, (-1, self.head_dim)).transpose(1, 2) for part in parts)

    def drop(self, tokens: Tensor) -> Tensor:
        dropped: Tensor = self.resid_dropout(tokens)
        return dropped

    def output_layer(self) -> LinearLayer | None:
        return None  # its weight is transposed


class Mlp(StepMlp):
    """Two linear layers with transposed weights."""

    before_mid, after_mid = ("c_fc", "act"), ("c_proj", "dropout")


def gpt2_sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    """Yield the sites `attn`, `crossattention` (some decoders) and `mlp` of a block."""
    children = ("ln_1", "attn", "ln_2", "crossattention", "ln_cross_attn", "mlp")
    check_known(block, path, arguments=_ARGUMENTS, children=children)
    yield _attention_site(block.attn, f"{path}.attn")
    if hasattr(block, "crossattention"):
        yield _attention_site(block.crossattention, f"{path}.crossattention", cross=True)
    mlp = block.mlp
    check_known(mlp, f"{path}.mlp", arguments=("hidden_states",), children=("c_fc", "c_proj", "act", "dropout"))
    yield mlp_site(f"{path}.mlp", MlpGeometry(dim=mlp.c_proj.nf, hidden=mlp.c_fc.nf, causal=True))


def _attention_site(module: Any, path: str, **fields: Any) -> Site:
    children = ("c_attn", "q_attn", "c_proj", "attn_dropout", "resid_dropout")
    check_known(module, path, arguments=_ARGUMENTS, children=children)
    width = module.head_dim
    fields |= {"dim": module.embed_dim, "heads": module.num_heads, "key_width": width, "value_width": width}
    refusal = _UPCAST if module.reorder_and_upcast_attn else unsupported(module.config._attn_implementation)
    if refusal is not None:
        return refused_site(path, refusal, causal=True, **fields)
    return global_site(path, AttentionGeometry(causal=True, **fields), _NO_WEIGHTS)
