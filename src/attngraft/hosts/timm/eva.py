"""timm's EVA (EVA-02, DINOv3, Perception Encoder, ROPE-ViT: rotary positions) and BEiT, which it came from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from timm.models.beit import Beit
from timm.models.beit import Block as BeitBlock
from timm.models.eva import Eva, EvaBlock, EvaBlockPostNorm

from attngraft.attention import plain_class
from attngraft.hosts.adapter import Site
from attngraft.hosts.registry import register_host
from attngraft.hosts.timm.attention import prefixed_grid
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.masked import GraftedEvaBlock, GraftedEvaBlockPostNorm, with_pair_mask
from attngraft.hosts.timm.rope import PATCHED, rotary_block_sites


class TimmEva(TimmFamily):
    """Sites `blocks.<i>.attn` and `blocks.<i>.mlp`."""

    name = "timm.eva"
    summary = "timm EVA, EVA-02, DINOv3 and other ViTs with rotary positions, and BEiT, of any size"
    patched: ClassVar = {**PATCHED, EvaBlock: GraftedEvaBlock, EvaBlockPostNorm: GraftedEvaBlockPostNorm}
    models = (Eva, Beit)
    blocks = (EvaBlock, EvaBlockPostNorm, BeitBlock)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        sites = rotary_block_sites(block, path, **prefixed_grid(look.model, dim=look.model.embed_dim))
        return sites if plain_class(block) is BeitBlock else (with_pair_mask(site, path) for site in sites)


register_host(TimmEva())
