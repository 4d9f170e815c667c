"""timm's TNT: each block has a transformer over the pixels of every patch, then one over the patches."""

from typing import Any, ClassVar

from timm.models.tnt import TNT, Attention, Block
from torch import Tensor

from attngraft.attention import CLASS, Projected
from attngraft.hosts.adapter import Site
from attngraft.hosts.sites import projected_heads
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import ScaledProducts, split_heads, split_qkv
from attngraft.hosts.timm.family import ShapeProbe, Sites, TimmFamily, checked_site, map_fields


class GraftedAttention(ScaledProducts, Attention):
    """`timm.models.tnt.Attention`: one projection of q and k, one of v."""

    fused_attn = False

    def project(self, x: Tensor) -> Projected:
        q, k = split_qkv(self.qk(x), self.num_heads, parts=2)
        return Projected(q, k, split_heads(self.v(x), self.num_heads), x)


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    patches, pixels, inner = shapes.input_shape(f"{path}.attn_in")
    inside: dict[str, Any] = {"dim": inner, "tokens": pixels, "sequences": patches}
    yield _attention_site(block.attn_in, f"{path}.attn_in", **inside)
    yield from mlp.mlp_sites(block.mlp_in, f"{path}.mlp_in", **inside)
    dim = shapes.input_shape(f"{path}.attn_out")[-1]
    outside = map_fields(dim, *shapes.model.pixel_embed.grid_size, prefix=CLASS)
    yield _attention_site(block.attn_out, f"{path}.attn_out", **outside)
    yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", **outside)


def _attention_site(module: Any, path: str, **tokens: Any) -> Site:
    projections = {"q": ("qk", 0), "k": ("qk", module.hidden_dim), "v": ("v", 0)}
    value_width = module.v.out_features // module.num_heads
    heads = projected_heads(module, projections, width=module.head_dim, value_width=value_width)
    children = ("qk", "v", "attn_drop", "proj", "proj_drop")
    return checked_site(module, path, children=children, heads=heads, **tokens)


class TimmTnt(TimmFamily):
    """Sites `blocks.<i>.attn_in`, `.mlp_in`, `.attn_out` and `.mlp`.

    In the inner transformer each patch is a sequence, so grafts that average over tokens average over a patch's pixels.
    """

    name = "timm.tnt"
    summary = "timm TNT of any size (its transformers over pixels and over patches)"
    patched: ClassVar = {Attention: GraftedAttention, **mlp.PATCHED}
    models = (TNT,)
    blocks: ClassVar = {Block: _sites}
