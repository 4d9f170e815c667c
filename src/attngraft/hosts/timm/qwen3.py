"""timm's Qwen3-ViT, the vision encoder of Qwen3-VL and its successors: alone, or with a classifier behind it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from timm.models.eva import EvaBlock
from timm.models.qwen3_vit import Qwen3VitClassifier, Qwen3VitEncoder

from attngraft.hosts.adapter import Site
from attngraft.hosts.registry import register_host
from attngraft.hosts.timm.attention import prefixed_grid
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.rope import PATCHED, rotary_block_sites


class TimmQwen3(TimmFamily):
    """Sites `blocks.<i>.attn` and `blocks.<i>.mlp`, behind a classifier `encoder.blocks.<i>`."""

    name = "timm.qwen3"
    summary = "timm Qwen3-ViT of any size, encoder or classifier"
    patched: ClassVar = PATCHED
    models = (Qwen3VitEncoder, Qwen3VitClassifier)
    blocks = (EvaBlock,)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        return rotary_block_sites(block, path, **prefixed_grid(look.model, dim=look.model.embed_dim))


register_host(TimmQwen3())
