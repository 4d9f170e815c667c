"""Attention of timm's EVA family: rotary positions, separate q and v biases, or three projections."""

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from timm.layers import AttentionRope, apply_rot_embed_cat
from timm.models.beit import Attention as BeitAttention
from timm.models.eva import EvaAttention
from torch import Tensor, nn

from attngraft.attention import GraftedModule, Projected, plain_class
from attngraft.hosts.adapter import Site, own_parameters
from attngraft.hosts.family import Sites
from attngraft.hosts.patched import patch_classes
from attngraft.hosts.sites import fused_heads, projected_heads
from attngraft.hosts.timm.attention import SelfAttention, checked_mask, output_gate, split_qkv
from attngraft.hosts.timm.family import checked_site, unread_site
from attngraft.hosts.timm.mlp import PATCHED as MLPS
from attngraft.hosts.timm.mlp import mlp_sites


def fused_qkv(module: Any, x: Tensor) -> Tensor:
    """Apply a fused projection, which may have separate q and v biases and a zero k bias: (B, N, 3 H d)."""
    if getattr(module, "q_bias", None) is None:
        return cast(Tensor, module.qkv(x))
    bias = torch.cat((module.q_bias, module.k_bias, module.v_bias))
    if module.qkv_bias_separate:
        return cast(Tensor, module.qkv(x) + bias)
    return F.linear(x, weight=module.qkv.weight, bias=bias)


class RotarySite(SelfAttention):
    """Attention with q, k and v projections, qk-norm, and rotary positions for all tokens except the prefix."""

    qkv: nn.Module | None  # type: ignore[assignment]
    q_proj: nn.Module | None
    k_proj: nn.Module | None
    v_proj: nn.Module | None
    q_norm: nn.Module
    k_norm: nn.Module
    head_dim: int
    num_prefix_tokens: int

    def project(
        self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Projected:
        q, k, v = self.split(x)
        q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q, k = (self.rotate(each, rope).type_as(v) for each in (q, k))
        mask = checked_mask(self, attn_mask, is_causal)
        return Projected(q, self.repeat(k), self.repeat(v), x, rest=output_gate(self, x), **mask)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return q, k and v, (B, H, N, d) each."""
        if self.qkv is not None:
            return split_qkv(fused_qkv(self, x), self.num_heads)
        projections = cast(tuple[nn.Module, ...], (self.q_proj, self.k_proj, self.v_proj))
        return tuple(project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for project in projections)

    def rotate(self, x: Tensor, rope: Tensor) -> Tensor:
        prefix = self.num_prefix_tokens
        half = {"half": True} if getattr(self, "rotate_half", False) else {}  # new after timm 1.0.16
        return torch.cat([x[:, :, :prefix], apply_rot_embed_cat(x[:, :, prefix:], rope, **half)], dim=2)

    def repeat(self, x: Tensor) -> Tensor:
        """Repeat keys or values of grouped queries for every head."""
        groups = getattr(self, "num_kv_groups", 1)
        return x.repeat_interleave(groups, dim=1) if groups > 1 else x


class GraftedBeitAttention(SelfAttention, BeitAttention):
    """`timm.models.beit.Attention`: a table of relative positions, per block or for the whole model."""

    may_hide_all: ClassVar[bool] = False

    def project(self, x: Tensor, shared_rel_pos_bias: Tensor | None = None) -> Projected:
        q, k, v = split_qkv(fused_qkv(self, x), self.num_heads)
        bias = shared_rel_pos_bias
        if self.relative_position_bias_table is not None:
            own = self._get_rel_pos_bias()
            bias = own if bias is None else own + bias
        return Projected(q, k, v, x, bias=bias)


_ATTENTION: Mapping[type[nn.Module], type[GraftedModule]] = {
    BeitAttention: GraftedBeitAttention,
    **patch_classes(RotarySite, EvaAttention, AttentionRope, module=__name__),
}
PATCHED = {**_ATTENTION, **MLPS}
_PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def rotary_block_sites(block: Any, path: str, **tokens: Any) -> Sites:
    """Yield the two sites of a block of the EVA family; `tokens` are the geometry fields of its tokens."""
    yield _rotary_site(block.attn, f"{path}.attn", **tokens)
    yield from mlp_sites(block.mlp, f"{path}.mlp", **tokens)


def _rotary_site(module: Any, path: str, **tokens: Any) -> Site:
    if plain_class(module) not in _ATTENTION:
        return unread_site(module, path, **tokens)
    if module.qkv is not None:
        heads = fused_heads(module)
    else:
        rows = {} if getattr(module, "num_kv_groups", 1) > 1 else dict(zip("qkv", _PROJECTIONS, strict=True))
        width = module.proj.in_features // module.num_heads
        heads = projected_heads(module, rows, width=width)
    return checked_site(
        module,
        path,
        arguments=("x", "rope", "attn_mask", "is_causal", "shared_rel_pos_bias", "args", "kwargs"),
        children=("qkv", *_PROJECTIONS, "q_norm", "k_norm", "attn_drop", "norm", "gate", "proj", "proj_drop"),
        heads=heads,
        query_key_parameters=own_parameters(module, "q_norm", "k_norm", "relative_position_bias_table"),
        score_columns=own_parameters(module, "relative_position_bias_table"),
        **tokens,
    )
