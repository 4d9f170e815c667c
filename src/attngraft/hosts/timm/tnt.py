"""timm's TNT: in each block a transformer of the pixels of every patch, then one of the patches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from timm.models.tnt import TNT, Attention, Block
from torch import Tensor

from attngraft.attention import CLASS, AttentionGeometry, Projected
from attngraft.hosts.adapter import Site, check_known, head_rows
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import global_site
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import ScaledProducts, by_heads, mlp_sites
from attngraft.hosts.timm.family import Look, TimmFamily


class GraftedAttention(ScaledProducts, Attention):
    """`timm.models.tnt.Attention`: q and k of one projection, v of another."""

    fused_attn = False

    def project(self, x: Tensor) -> Projected:
        q, k = self.qk(x).unflatten(-1, (2, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)
        return Projected(q, k, by_heads(self.v(x), self.num_heads), x)


class TimmTnt(TimmFamily):
    """Sites `blocks.<i>.attn_in`, `.mlp_in`, `.attn_out` and `.mlp`. Inside, each patch is a sequence of its own: a graft
    that averages over tokens does so over the pixels of a patch."""

    name = "timm.tnt"
    summary = "timm TNT of any size, pixels within patches and patches"
    patched: ClassVar = {Attention: GraftedAttention, **timm_mlp.PATCHED}
    models = (TNT,)
    blocks = (Block,)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        patches, pixels, inner = look.entering(f"{path}.attn_in")
        within = {"dim": inner, "tokens": pixels, "sequences": patches}
        yield self._attention_site(block.attn_in, f"{path}.attn_in", **within)
        yield from mlp_sites(block.mlp_in, f"{path}.mlp_in", **within)
        _, tokens, dim = look.entering(f"{path}.attn_out")
        grid = tuple(look.model.pixel_embed.grid_size)
        outside = {"dim": dim, "tokens": tokens, "prefix": CLASS, "grid": grid}
        yield self._attention_site(block.attn_out, f"{path}.attn_out", **outside)
        yield from mlp_sites(block.mlp, f"{path}.mlp", **outside)

    def _attention_site(self, module: Any, path: str, **tokens: Any) -> Site:
        check_known(
            module, path, arguments=("x", "args", "kwargs"), children=("qk", "v", "attn_drop", "proj", "proj_drop")
        )
        key, value = module.head_dim, module.v.out_features // module.num_heads
        geometry = AttentionGeometry(
            **tokens,
            heads=module.num_heads,
            key_width=key,
            value_width=value,
            rows={
                "q": head_rows(module, "qk", start=0, width=key, step=key),
                "k": head_rows(module, "qk", start=module.hidden_dim, width=key, step=key),
                "v": head_rows(module, "v", start=0, width=value, step=value),
            },
        )
        return global_site(path, geometry)


register_host(TimmTnt())
