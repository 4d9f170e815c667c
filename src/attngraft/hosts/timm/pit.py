"""timm's PiT: three stages of ViT blocks, with pooled maps between them and a class token beside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from timm.models.pit import PoolingVisionTransformer

from attngraft.attention import prefix_names
from attngraft.hosts.adapter import Site
from attngraft.hosts.registry import register_host
from attngraft.hosts.timm.attention import BLOCKS, PATCHED, block_sites
from attngraft.hosts.timm.family import Look, TimmFamily


class TimmPit(TimmFamily):
    """Sites `transformers.<i>.blocks.<j>.attn` and `.mlp`."""

    name = "timm.pit"
    summary = "timm PiT of any size, distilled or not, features_only too"
    patched: ClassVar = PATCHED
    models = (PoolingVisionTransformer,)
    blocks = BLOCKS

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        _, tokens, dim = look.entering(path)
        prefix = prefix_names(distillation=look.model.cls_token.shape[1] == 2)
        side = round((tokens - len(prefix)) ** 0.5)
        return block_sites(block, path, dim=dim, tokens=tokens, prefix=prefix, grid=(side, side))


register_host(TimmPit())
