"""timm's NesT: each level partitions its map into blocks once, and attention stays within a block."""

import math
from typing import Any, ClassVar, cast

from timm.layers import Mlp
from timm.models.nest import Attention, Nest, TransformerLayer, blockify
from torch import Tensor

from attngraft.attention import Projected, Recordable, record_coordinates
from attngraft.attention.recorder import BLOCK_COORDINATES
from attngraft.hosts.sites import windowed
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import split_qkv
from attngraft.hosts.timm.family import ShapeProbe, Sites, TimmFamily, checked_site, map_fields
from attngraft.hosts.timm.windows import WindowAxisSite


def _record_blocks(module: Recordable, x: Tensor) -> None:
    """Record the coordinates of tokens (B, blocks, tokens, C)."""
    side = math.isqrt(x.shape[2])
    rows = math.isqrt(x.shape[1]) * side
    record_coordinates(module, x.new_empty(1, rows, rows, 1), lambda maps: blockify(maps, side), name=BLOCK_COORDINATES)


class GraftedAttention(WindowAxisSite, Attention):
    """`timm.models.nest.Attention`, on (B, blocks of an image, tokens of a block, C)."""

    def forward(self, x: Tensor) -> Tensor:
        _record_blocks(self, x)
        blocks = x.shape[1]
        return self.run("attn.end", super().forward(x.flatten(0, 1), blocks).unflatten(0, (-1, blocks)))

    def project(self, x: Tensor, blocks: int) -> Projected:
        q, k, v = split_qkv(self.qkv(x), self.num_heads)
        return Projected(q, k, v, x, rest=blocks)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        """Merge heads in the order of the host: the first channel of every head, then the second."""
        return cast(Tensor, self.proj(heads.permute(0, 2, 3, 1).flatten(2)))


class GraftedMlp(mlp.GraftedMlp):
    """`timm.layers.Mlp`, on (B, blocks of an image, tokens of a block, C)."""

    def forward(self, x: Tensor) -> Tensor:
        _record_blocks(self, x)
        return super().forward(x)


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, blocks, tokens, dim = shapes.input_shape(path)
    side = math.isqrt(tokens)
    rows = math.isqrt(blocks) * side
    window = windowed((rows, rows), (side, side))
    yield checked_site(block.attn, f"{path}.attn", dim=dim, **window)
    yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", **map_fields(dim, rows, rows))


class TimmNest(TimmFamily):
    """Sites `levels.<i>.transformer_encoder.<j>.attn` and `.mlp`; the blocks of an image are its windows."""

    name = "timm.nest"
    summary = "timm NesT of any size, including features_only"
    patched: ClassVar = {Attention: GraftedAttention, **mlp.PATCHED, Mlp: GraftedMlp}
    models = (Nest,)
    blocks: ClassVar = {TransformerLayer: _sites}
