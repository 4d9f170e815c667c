"""Blocks that take a mask over pairs of tokens, and give it to their attention alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from timm.models.eva import EvaBlock, EvaBlockPostNorm
from timm.models.vision_transformer import Block, ResPostBlock
from torch import Tensor

from attngraft.attention import GraftedModule
from attngraft.hosts.adapter import Site
from attngraft.hosts.calls import check_call


class MaskedBlock(GraftedModule):
    """It holds a mask against the grafts of its MLP, which never sees it."""

    mlp: Any

    @property
    def in_use(self) -> bool:
        return super().in_use or (isinstance(self.mlp, GraftedModule) and self.mlp.in_use)

    def check_mask(self, attn_mask: Tensor | None, is_causal: bool) -> None:
        """Refuse a mask where a graft of the MLP would let hidden tokens take part.

        Raises:
            UsageError: it would.
        """
        if isinstance(self.mlp, GraftedModule):
            check_call(self.mlp, causal=attn_mask is not None or is_causal)


class GraftedBlock(MaskedBlock, Block):
    """`timm.models.vision_transformer.Block`."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        self.check_mask(attn_mask, is_causal)
        return super().forward(x, attn_mask=attn_mask, is_causal=is_causal)


class GraftedResPostBlock(MaskedBlock, ResPostBlock):
    """`timm.models.vision_transformer.ResPostBlock`."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        self.check_mask(attn_mask, is_causal)
        return super().forward(x, attn_mask=attn_mask, is_causal=is_causal)


class GraftedEvaBlock(MaskedBlock, EvaBlock):
    """`timm.models.eva.EvaBlock`."""

    def forward(
        self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        self.check_mask(attn_mask, is_causal)
        return super().forward(x, rope=rope, attn_mask=attn_mask, is_causal=is_causal)


class GraftedEvaBlockPostNorm(MaskedBlock, EvaBlockPostNorm):
    """`timm.models.eva.EvaBlockPostNorm`."""

    def forward(
        self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        self.check_mask(attn_mask, is_causal)
        return super().forward(x, rope=rope, attn_mask=attn_mask, is_causal=is_causal)


def with_pair_mask(site: Site, block: str) -> Site:
    """`site` of the block at this path, which is to know of the mask wherever a graft stands in its MLP."""
    return replace(site, companions=dict.fromkeys(site.targets, (block,))) if site.kind == "mlp" else site
