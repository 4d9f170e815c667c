"""timm's NextViT: attention with average-pooled keys, next to convolutions; MLPs on maps in every block."""

from typing import Any, ClassVar

from timm.models.nextvit import EfficientAttention, NextConvBlock, NextTransformerBlock, NextViT
from torch import Tensor

from attngraft.attention import Projected, plain_class
from attngraft.hosts.sites import projected_heads
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import PlainMerge, split_heads
from attngraft.hosts.timm.family import ShapeProbe, Sites, TimmFamily, checked_site, map_fields


class GraftedEfficientAttention(PlainMerge, EfficientAttention):
    """`timm.models.nextvit.EfficientAttention`: k and v are projected from pooled and normalized tokens."""

    def project(self, x: Tensor) -> Projected:
        q, keys = self.q(x), x  # q first, as in the host: gradients add up in that order
        if self.sr is not None and self.norm is not None:
            keys = self.norm(self.sr(x.transpose(1, 2))).transpose(1, 2)
        q, k, v = (split_heads(each, self.num_heads) for each in (q, self.k(keys), self.v(keys)))
        return Projected(q, k, v, x, keys=keys)


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, dim, rows, columns = shapes.input_shape(f"{path}.mlp")
    fields = map_fields(dim, rows, columns)
    if plain_class(block) is NextTransformerBlock:
        module, attn = block.e_mhsa, f"{path}.e_mhsa"
        yield checked_site(
            module,
            attn,
            children=("q", "k", "v", "proj", "attn_drop", "proj_drop", "sr", "norm"),
            heads=projected_heads(module, {"q": "q", "k": "k", "v": "v"}, width=module.head_dim),
            key_tokens=None if module.sr is None else shapes.output_shape(f"{attn}.sr")[-1],
            **{**fields, "dim": module.dim},
        )
    yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", **fields)


class TimmNextViT(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.e_mhsa`, if the block has one, and `.mlp`."""

    name = "timm.nextvit"
    summary = "timm NextViT of any size (convolutional blocks: MLP sites only), including features_only"
    patched: ClassVar = {EfficientAttention: GraftedEfficientAttention, **mlp.PATCHED}
    models = (NextViT,)
    blocks: ClassVar = {NextConvBlock: _sites, NextTransformerBlock: _sites}
