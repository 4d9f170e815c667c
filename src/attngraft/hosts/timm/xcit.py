"""timm's XCiT: attention between channels, a convolution of neighbours, then blocks in which the class token asks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from timm.models.cait import ClassAttn
from timm.models.xcit import ClassAttentionBlock, XCABlock, Xcit

from attngraft.attention import CLASS, plain_class
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.registry import register_host
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import mlp_sites
from attngraft.hosts.timm.cait import GraftedClassAttn, class_attn_site
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.refused import channel_site

_INSTEAD = "name the blocks in which the class token asks (cls_attn_blocks)"


class TimmXcit(TimmFamily):
    """Sites `blocks.<i>.attn` (which no graft takes) and `.mlp`, that come before and after the convolution of neighbours;
    `cls_attn_blocks.<i>.attn` and `.mlp`, of the class token alone."""

    name = "timm.xcit"
    summary = "timm XCiT of any size (its MLPs and its class attention, not its attention between channels)"
    patched: ClassVar = {ClassAttn: GraftedClassAttn, **timm_mlp.PATCHED}
    models = (Xcit,)
    blocks = (XCABlock, ClassAttentionBlock)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        embed, dim = look.model.patch_embed, look.model.embed_dim
        rows, columns = (side // embed.patch_size for side in embed.img_size)
        tokens = {"dim": dim, "tokens": rows * columns, "grid": (rows, columns)}
        if plain_class(block) is XCABlock:
            children = ("norm1", "attn", "drop_path1", "norm3", "local_mp", "drop_path3", "norm2", "mlp", "drop_path2")
            check_known(block, path, arguments=("x", "H", "W"), children=children)
            yield channel_site(f"{path}.attn", instead=_INSTEAD, **tokens)
            yield from mlp_sites(block.mlp, f"{path}.mlp", **tokens)
        else:
            tokens["tokens"] = 1 + rows * columns
            yield class_attn_site(block.attn, f"{path}.attn", **tokens)
            yield from mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=1, prefix=CLASS)


register_host(TimmXcit())
