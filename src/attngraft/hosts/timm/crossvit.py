"""timm's CrossViT: two branches of ViT blocks on patches of two sizes, whose class tokens look at each other's patches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from timm.models.crossvit import CrossAttention, CrossAttentionBlock, CrossVit
from timm.models.vision_transformer import Block
from torch import Tensor

from attngraft.attention import CLASS, Projected, plain_class
from attngraft.hosts.adapter import Site, head_rows
from attngraft.hosts.registry import register_host
from attngraft.hosts.timm.attention import PATCHED, block_sites, by_heads
from attngraft.hosts.timm.class_attention import ClassSite, class_site
from attngraft.hosts.timm.family import Look, TimmFamily


class GraftedCrossAttention(ClassSite, CrossAttention):
    """`timm.models.crossvit.CrossAttention`: the class token is one branch's, the patches are the other's."""

    fused_attn = False

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.wq(x[:, :1]), self.wk(x), self.wv(x)
        return by_heads(q, self.num_heads), by_heads(k, self.num_heads), by_heads(v, self.num_heads)

    def scores(self, projected: Projected) -> Tensor:
        """The host's own order of factors."""
        return (projected.q @ projected.k.transpose(-2, -1)) * self.scale


class TimmCrossVit(TimmFamily):
    """Sites `blocks.<i>.blocks.<branch>.<j>.attn` and `.mlp`; `blocks.<i>.fusion.<branch>.attn`, where class tokens ask."""

    name = "timm.crossvit"
    summary = "timm CrossViT of any size, features_only too"
    patched: ClassVar = {CrossAttention: GraftedCrossAttention, **PATCHED}
    models = (CrossVit,)
    blocks = (Block, CrossAttentionBlock)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        _, tokens, dim = look.entering(path)
        branch = int(path.split(".")[3])
        if plain_class(block) is CrossAttentionBlock:
            module = block.attn
            rows = {
                role: head_rows(
                    module, f"w{role}", start=0, width=dim // module.num_heads, step=dim // module.num_heads
                )
                for role in ("q", "k", "v")
            }
            other = (branch + 1) % look.model.num_branches  # whose patches the class token sees, and whose width it has
            return [
                class_site(
                    module,
                    f"{path}.attn",
                    children=("wq", "wk", "wv"),
                    rows=rows,
                    dim=dim,
                    tokens=tokens,
                    grid=_grid(look.model, other),
                )
            ]
        grid = _grid(look.model, branch)
        return block_sites(block, path, dim=dim, tokens=tokens, prefix=CLASS, grid=grid)


def _grid(model: Any, branch: int) -> tuple[int, int]:
    """(rows, columns) of the patches of a branch."""
    embed = model.patch_embed[branch]
    rows, columns = (side // patch for side, patch in zip(embed.img_size, embed.patch_size, strict=True))
    return rows, columns


register_host(TimmCrossVit())
