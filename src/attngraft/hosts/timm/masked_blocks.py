"""Blocks that check their attention mask for grafts that do not receive it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from torch import Tensor

from attngraft.attention import GraftedModule
from attngraft.hosts.adapter import Site
from attngraft.hosts.patched import check_call


class PairMaskBlock(GraftedModule):
    """A block with a mask over token pairs, which it checks for the grafts of its MLP."""

    mlp: Any

    @property
    def in_use(self) -> bool:
        return super().in_use or (isinstance(self.mlp, GraftedModule) and self.mlp.in_use)

    def check_mask(self, attn_mask: Tensor | None, is_causal: bool) -> None:
        """Refuse a mask if a graft of the MLP would mix in hidden tokens.

        Raises:
            UsageError: a graft refuses.
        """
        if isinstance(self.mlp, GraftedModule):
            check_call(self.mlp, causal=attn_mask is not None or is_causal)


class PairMaskVitBlock(PairMaskBlock):
    """Forward of `Block` and `ResPostBlock` of `timm.models.vision_transformer`."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        self.check_mask(attn_mask, is_causal)
        return cast(Tensor, super().forward(x, attn_mask=attn_mask, is_causal=is_causal))  # type: ignore[misc]


class PairMaskEvaBlock(PairMaskBlock):
    """Forward of `EvaBlock` and `EvaBlockPostNorm` of `timm.models.eva`."""

    def forward(
        self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        self.check_mask(attn_mask, is_causal)
        out = super().forward(x, rope=rope, attn_mask=attn_mask, is_causal=is_causal)  # type: ignore[misc]
        return cast(Tensor, out)


def with_pair_mask(site: Site, block: str) -> Site:
    """Return `site` with the block at this path as companion if it is an MLP."""
    return replace(site, companions=dict.fromkeys(site.targets, (block,))) if site.kind == "mlp" else site


class PaddingMaskBlock(GraftedModule):
    """A block with a padding mask, which it checks for the grafts of its attention and MLP."""

    attn: Any
    mlp: Any

    @property
    def in_use(self) -> bool:
        return super().in_use or any(isinstance(each, GraftedModule) and each.in_use for each in (self.attn, self.mlp))

    def check_padding(self, attn_mask: Tensor | None) -> None:
        """Refuse a mask if a graft would mix in padding.

        Raises:
            UsageError: a graft refuses.
        """
        for module in (self.attn, self.mlp):
            if attn_mask is not None and isinstance(module, GraftedModule):
                check_call(module, padded=True)


def with_padding_mask(site: Site, block: str) -> Site:
    """Return `site` with the block at this path as companion."""
    return replace(site, companions=dict.fromkeys(site.targets, (block,)))
