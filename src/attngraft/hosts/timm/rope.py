"""Attention of timm's EVA family: rotary positions, q and v biases beside a fused projection, or three projections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from timm.layers import AttentionRope, apply_rot_embed_cat
from timm.models.beit import Attention as BeitAttention
from timm.models.eva import EvaAttention
from torch import Tensor, nn

from attngraft.attention import AttentionGeometry, GraftedModule, HeadRows, Projected
from attngraft.hosts.adapter import Site, check_known, fused_rows, head_rows, own_parameters
from attngraft.hosts.sites import global_site
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import SelfAttention, gate, masked, mlp_sites, unread_site


def fused_qkv(module: Any, x: Tensor) -> Tensor:
    """(B, N, 3 H d): a fused projection whose q and v have biases of their own, and whose k has a bias of zeros."""
    if module.q_bias is None:
        return cast(Tensor, module.qkv(x))
    bias = torch.cat((module.q_bias, module.k_bias, module.v_bias))
    if module.qkv_bias_separate:
        return cast(Tensor, module.qkv(x) + bias)
    return F.linear(x, weight=module.qkv.weight, bias=bias)


class RotarySite(SelfAttention):
    """Projections of q, k and v, qk-norm, rotation of all tokens behind the prefix."""

    qkv: nn.Module | None
    q_proj: nn.Module | None
    k_proj: nn.Module | None
    v_proj: nn.Module | None
    q_norm: nn.Module
    k_norm: nn.Module
    num_heads: int
    head_dim: int
    num_prefix_tokens: int

    def project(
        self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Projected:
        q, k, v = self.split(x)
        q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q, k = (self.rotate(each, rope).type_as(v) for each in (q, k))
        bias = masked(self, attn_mask, is_causal)
        return Projected(q, self.repeat(k), self.repeat(v), x, bias=bias, causal=is_causal, rest=gate(self, x))

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """q, k and v, (B, H, N, d) each."""
        if self.qkv is not None:
            fused = self.fused(x).unflatten(-1, (3, self.num_heads, -1))
            return fused.permute(2, 0, 3, 1, 4).unbind(0)
        projections = cast(tuple[nn.Module, ...], (self.q_proj, self.k_proj, self.v_proj))
        return tuple(project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for project in projections)

    def fused(self, x: Tensor) -> Tensor:
        return cast(Tensor, cast(nn.Module, self.qkv)(x))

    def rotate(self, x: Tensor, rope: Tensor) -> Tensor:
        prefix, half = self.num_prefix_tokens, getattr(self, "rotate_half", False)
        return torch.cat([x[:, :, :prefix], apply_rot_embed_cat(x[:, :, prefix:], rope, half=half)], dim=2)

    def repeat(self, x: Tensor) -> Tensor:
        """Keys and values of grouped queries, once per head."""
        groups = getattr(self, "num_kv_groups", 1)
        return x.repeat_interleave(groups, dim=1) if groups > 1 else x


class GraftedEvaAttention(RotarySite, EvaAttention):
    """`timm.models.eva.EvaAttention`."""

    def fused(self, x: Tensor) -> Tensor:
        return fused_qkv(self, x)


class GraftedAttentionRope(RotarySite, AttentionRope):
    """`timm.layers.AttentionRope`."""


class GraftedBeitAttention(SelfAttention, BeitAttention):
    """`timm.models.beit.Attention`: a table of relative positions, its own or one of the whole model."""

    def project(self, x: Tensor, shared_rel_pos_bias: Tensor | None = None) -> Projected:
        q, k, v = fused_qkv(self, x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        bias = shared_rel_pos_bias
        if self.relative_position_bias_table is not None:
            own = self._get_rel_pos_bias()
            bias = own if bias is None else own + bias
        return Projected(q, k, v, x, bias=bias, rest=None)


PATCHED: Mapping[type[nn.Module], type[GraftedModule]] = {
    EvaAttention: GraftedEvaAttention,
    AttentionRope: GraftedAttentionRope,
    BeitAttention: GraftedBeitAttention,
    **timm_mlp.PATCHED,
}
KNOWN = {kind for plain, patched in PATCHED.items() if plain not in timm_mlp.PATCHED for kind in (plain, patched)}


def rotary_site(module: Any, path: str, **tokens: Any) -> Site:
    """The site that one of these attentions is; `tokens` are the fields of `Geometry` that the model knows."""
    if type(module) not in KNOWN:
        return unread_site(module, path, **tokens)
    check_known(
        module,
        path,
        arguments=("x", "rope", "attn_mask", "is_causal", "shared_rel_pos_bias", "args", "kwargs"),
        children=(
            "qkv",
            "q_proj",
            "k_proj",
            "v_proj",
            "q_norm",
            "k_norm",
            "attn_drop",
            "norm",
            "gate",
            "proj",
            "proj_drop",
        ),
    )
    width = module.proj.in_features // module.num_heads
    geometry = AttentionGeometry(
        **tokens,
        heads=module.num_heads,
        key_width=width,
        value_width=width,
        rows=_rows(module, width),
        query_key_parameters=own_parameters(module, "q_norm", "k_norm", "relative_position_bias_table"),
        score_columns=own_parameters(module, "relative_position_bias_table"),
    )
    return global_site(path, geometry)


def rotary_block_sites(block: Any, path: str, **tokens: Any) -> Iterator[Site]:
    """The two sites of a block with one of these attentions."""
    yield rotary_site(block.attn, f"{path}.attn", **tokens)
    yield from mlp_sites(block.mlp, f"{path}.mlp", **tokens)


def _rows(module: Any, width: int) -> dict[str, tuple[HeadRows, ...]]:
    """Which rows make q, k and v of which head; none where heads share keys and values."""
    if module.qkv is None:
        if getattr(module, "num_kv_groups", 1) > 1:
            return {}
        return {role: head_rows(module, f"{role}_proj", start=0, width=width, step=width) for role in ("q", "k", "v")}
    return fused_rows(module, "qkv", heads=module.num_heads)
