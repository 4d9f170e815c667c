"""timm's CrossViT: two branches of ViT blocks with different patch sizes; the class tokens attend to the other branch."""

from typing import Any, ClassVar

from timm.models.crossvit import CrossAttention, CrossAttentionBlock, CrossVit
from timm.models.vision_transformer import Block
from torch import Tensor

from attngraft.attention import CLASS
from attngraft.hosts.sites import projected_heads
from attngraft.hosts.timm.attention import PATCHED, ClassAttention, ScaledProducts, split_heads
from attngraft.hosts.timm.family import ShapeProbe, Sites, TimmFamily, block_sites, class_attention_site, map_fields


class GraftedCrossAttention(ClassAttention, ScaledProducts, CrossAttention):
    """`timm.models.crossvit.CrossAttention`: the class token of one branch attends to the patches of the other."""

    fused_attn = False

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.wq(x[:, :1]), self.wk(x), self.wv(x)
        return split_heads(q, self.num_heads), split_heads(k, self.num_heads), split_heads(v, self.num_heads)


def _block_sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    dim = shapes.input_shape(path)[-1]
    return block_sites(block, path, **map_fields(dim, *_grid(shapes.model, int(path.split(".")[3])), prefix=CLASS))


def _fusion_sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    dim, module = shapes.input_shape(path)[-1], block.attn
    other = (int(path.split(".")[3]) + 1) % shapes.model.num_branches  # the branch of the keys, whose width is `dim`
    heads = projected_heads(module, {"q": "wq", "k": "wk", "v": "wv"}, width=dim // module.num_heads)
    fields = map_fields(dim, *_grid(shapes.model, other), prefix=CLASS)
    yield class_attention_site(module, f"{path}.attn", children=("wq", "wk", "wv"), heads=heads, **fields)


def _grid(model: Any, branch: int) -> tuple[int, int]:
    """Return (rows, columns) of the patches of a branch."""
    embed = model.patch_embed[branch]
    rows, columns = (side // patch for side, patch in zip(embed.img_size, embed.patch_size, strict=True))
    return rows, columns


class TimmCrossVit(TimmFamily):
    """Sites `blocks.<i>.blocks.<branch>.<j>.attn` and `.mlp`; `blocks.<i>.fusion.<branch>.attn`, with one query."""

    name = "timm.crossvit"
    summary = "timm CrossViT of any size, including features_only"
    patched: ClassVar = {CrossAttention: GraftedCrossAttention, **PATCHED}
    models = (CrossVit,)
    blocks: ClassVar = {Block: _block_sites, CrossAttentionBlock: _fusion_sites}
