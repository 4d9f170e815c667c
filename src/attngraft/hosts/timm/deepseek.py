"""timm's DeepSeek-ViT, the vision encoder of DeepSeek-V4 and V4.1: alone, or with a classifier behind it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from timm.models.deepseek_vit import DeepseekVitBlock, DeepseekVitClassifier, DeepseekVitEncoder

from attngraft.hosts.adapter import Site
from attngraft.hosts.registry import register_host
from attngraft.hosts.timm.attention import prefixed_grid
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.rope import PATCHED, rotary_block_sites


class TimmDeepseek(TimmFamily):
    """Sites `blocks.<i>.attn` and `blocks.<i>.mlp`, behind a classifier `encoder.blocks.<i>`."""

    name = "timm.deepseek"
    summary = "timm DeepSeek-ViT of any size, encoder or classifier"
    patched: ClassVar = PATCHED
    models = (DeepseekVitEncoder, DeepseekVitClassifier)
    blocks = (DeepseekVitBlock,)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        return rotary_block_sites(block, path, **prefixed_grid(look.model, dim=look.model.embed_dim))


register_host(TimmDeepseek())
