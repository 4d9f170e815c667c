"""timm's ViTs with relative positions: a bias of each block, or one of all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from timm.models.vision_transformer_relpos import (
    RelPosAttention,
    RelPosBlock,
    ResPostRelPosBlock,
    VisionTransformerRelPos,
)
from torch import Tensor

from attngraft.attention import AttentionGeometry, Projected
from attngraft.hosts.adapter import Site, check_known, own_parameters
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import fused_heads, global_site
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import SelfAttention, by_role, mlp_sites, prefixed_grid
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.positions import score_columns, score_rows


class GraftedRelPosAttention(SelfAttention, RelPosAttention):
    """`timm.models.vision_transformer_relpos.RelPosAttention`: its own relative positions come before shared ones."""

    def project(self, x: Tensor, shared_rel_pos: Tensor | None = None) -> Projected:
        q, k, v = by_role(self.qkv(x), self.num_heads)
        bias = shared_rel_pos if self.rel_pos is None else self.rel_pos.get_bias()
        return Projected(self.q_norm(q), self.k_norm(k), v, x, bias=bias)


class TimmRelPos(TimmFamily):
    """Sites `blocks.<i>.attn` and `blocks.<i>.mlp`."""

    name = "timm.relpos"
    summary = "timm ViTs with relative positions, of any size"
    patched: ClassVar = {RelPosAttention: GraftedRelPosAttention, **timm_mlp.PATCHED}
    models = (VisionTransformerRelPos,)
    blocks = (RelPosBlock, ResPostRelPosBlock)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        module, tokens = block.attn, prefixed_grid(look.model, dim=look.model.embed_dim)
        check_known(
            module,
            f"{path}.attn",
            arguments=("x", "shared_rel_pos", "args", "kwargs"),
            children=("qkv", "q_norm", "k_norm", "rel_pos", "attn_drop", "proj", "proj_drop"),
        )
        geometry = AttentionGeometry(
            **tokens,
            **fused_heads(module),
            query_key_parameters=own_parameters(module, "q_norm", "k_norm", "rel_pos"),
            score_rows=score_rows(module),
            score_columns=score_columns(module),
        )
        yield global_site(f"{path}.attn", geometry)
        yield from mlp_sites(block.mlp, f"{path}.mlp", **tokens)


register_host(TimmRelPos())
