"""timm's NesT: each level cuts its map into blocks once, and attention stays within them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar, cast

from timm.layers import Mlp
from timm.models.nest import Attention, Nest, TransformerLayer, blockify
from torch import Tensor

from attngraft.attention import AttentionGeometry, Projected, Recordable, record_coordinates
from attngraft.attention.recorder import BLOCK_COORDINATES
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import fused_heads, window_site, windowed
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import by_role, mlp_sites
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.own_windows import OwnWindows


def _offer_blocks(point: Recordable, x: Tensor) -> None:
    """Where the tokens of (B, blocks, tokens, C) stand."""
    side = math.isqrt(x.shape[2])
    rows = math.isqrt(x.shape[1]) * side
    record_coordinates(point, x.new_empty(1, rows, rows, 1), lambda maps: blockify(maps, side), name=BLOCK_COORDINATES)


class GraftedAttention(OwnWindows, Attention):
    """`timm.models.nest.Attention`: (B, blocks of an image, tokens of a block, C)."""

    def forward(self, x: Tensor) -> Tensor:
        _offer_blocks(self, x)
        blocks = x.shape[1]
        return self.run("attn.end", super().forward(x.flatten(0, 1), blocks).unflatten(0, (-1, blocks)))

    def project(self, x: Tensor, blocks: int) -> Projected:
        return Projected(*by_role(self.qkv(x), self.num_heads), x, rest=blocks)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        """The host's own order of channels: the first of every head, then the second."""
        return cast(Tensor, self.proj(heads.permute(0, 2, 3, 1).flatten(2)))


class GraftedMlp(timm_mlp.GraftedMlp):
    """`timm.layers.Mlp`, given the same blocks."""

    def forward(self, x: Tensor) -> Tensor:
        _offer_blocks(self, x)
        return super().forward(x)


class TimmNest(TimmFamily):
    """Sites `levels.<i>.transformer_encoder.<j>.attn` and `.mlp`; an image's blocks are its windows."""

    name = "timm.nest"
    summary = "timm NesT of any size, features_only too"
    patched: ClassVar = {Attention: GraftedAttention, **timm_mlp.PATCHED, Mlp: GraftedMlp}
    models = (Nest,)
    blocks = (TransformerLayer,)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        _, blocks, tokens, dim = look.entering(path)
        side = math.isqrt(tokens)
        rows = math.isqrt(blocks) * side
        module, attn = block.attn, f"{path}.attn"
        check_known(module, attn, arguments=("x", "args", "kwargs"), children=("qkv", "attn_drop", "proj", "proj_drop"))
        geometry = AttentionGeometry(dim=dim, **windowed((rows, rows), (side, side)), **fused_heads(module))
        yield window_site(attn, geometry)
        yield from mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=blocks * tokens, grid=(rows, rows))


register_host(TimmNest())
