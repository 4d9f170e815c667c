"""timm's ConViT: blocks whose maps are mixed with one of positions by a gate of each head, then blocks as a ViT's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

import torch
from timm.models.convit import GPSA, MHSA, Block, ConVit
from torch import Tensor, nn

from attngraft.attention import CLASS, AttentionGeometry, Projected, plain_class
from attngraft.hosts.adapter import Site, check_known, fused_rows, head_rows, own_parameters
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import global_site
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import ScaledProducts, by_heads, by_role, mlp_sites
from attngraft.hosts.timm.family import Look, TimmFamily

_GATED = (
    "its map is a softmax of scores mixed with one of positions, by a gate of each head; choose the blocks behind, or "
    "horizontal, vertical and cb"
)


class GraftedMHSA(ScaledProducts, MHSA):
    """`timm.models.convit.MHSA`."""

    fused_attn = False

    def project(self, x: Tensor) -> Projected:
        return Projected(*by_role(self.qkv(x), self.num_heads), x)


class GraftedGPSA(ScaledProducts, GPSA):
    """`timm.models.convit.GPSA`: the map at `weights` is the mixed one."""

    fused_attn = False
    rel_indices: Tensor

    def project(self, x: Tensor) -> Projected:
        if self.rel_indices.shape[1] != x.shape[1]:
            self.rel_indices = self.get_rel_indices(x.shape[1])
        q, k = self.qk(x).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return Projected(q, k, by_heads(self.v(x), self.num_heads), x)

    def normalize(self, scores: Tensor) -> Tensor:
        positions = self.pos_proj(self.rel_indices.expand(scores.shape[0], -1, -1, -1)).permute(0, 3, 1, 2)
        patches, positions = super().normalize(scores), positions.softmax(dim=-1)
        gate = self.gating_param.view(1, -1, 1, 1)  # two sigmoids, as the host has them: gradients round otherwise
        weights = (1.0 - torch.sigmoid(gate)) * patches + torch.sigmoid(gate) * positions
        return weights / weights.sum(dim=-1).unsqueeze(-1)


class TimmConVit(TimmFamily):
    """Sites `blocks.<i>.attn` and `blocks.<i>.mlp`; the class token comes behind the gated blocks."""

    name = "timm.convit"
    summary = "timm ConViT of any size"
    patched: ClassVar = {MHSA: GraftedMHSA, GPSA: GraftedGPSA, **timm_mlp.PATCHED}
    models = (ConVit,)
    blocks = (Block,)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        _, count, dim = look.entering(path)
        grid = tuple(look.model.patch_embed.grid_size)
        tokens: dict[str, Any] = {
            "dim": dim,
            "tokens": count,
            "prefix": CLASS * (count - grid[0] * grid[1]),
            "grid": grid,
        }
        yield self._attention_site(block.attn, f"{path}.attn", **tokens)
        yield from mlp_sites(block.mlp, f"{path}.mlp", **tokens)

    def _attention_site(self, module: Any, path: str, **tokens: Any) -> Site:
        children = ("qkv", "qk", "v", "pos_proj", "attn_drop", "proj", "proj_drop")
        check_known(module, path, arguments=("x", "args", "kwargs"), children=children)
        width = module.proj.in_features // module.num_heads
        gated = plain_class(module) is GPSA
        if gated:
            rows = {
                "q": head_rows(module, "qk", start=0, width=width, step=width),
                "k": head_rows(module, "qk", start=module.dim, width=width, step=width),
                "v": head_rows(module, "v", start=0, width=width, step=width),
            }
        else:
            rows = fused_rows(module, "qkv", heads=module.num_heads)
        positions = own_parameters(module, "pos_proj", "gating_param")
        geometry = AttentionGeometry(
            **tokens,
            heads=module.num_heads,
            key_width=width,
            value_width=width,
            rows=rows,
            query_key_parameters=positions,
            score_rows=positions,
        )
        return global_site(path, geometry, {"mix": _GATED} if gated else {})

    def forget(self, model: nn.Module) -> None:
        """Positions that a call made, in the precision of that time."""
        for module in model.modules():
            if isinstance(module, GPSA):
                module.rel_indices = cast(Tensor, module.qk.weight).new_zeros(1, 1, 1, 3)


register_host(TimmConVit())
