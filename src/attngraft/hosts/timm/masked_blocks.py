"""Blocks that get an attention mask, and check it for grafts that do not get it."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from torch import Tensor

from attngraft.hosts.adapter import Site
from attngraft.hosts.patched import MaskedParts


class PairMaskVitBlock(MaskedParts):
    """Forward of `Block` and `ResPostBlock` of `timm.models.vision_transformer`; the mask is over pairs of tokens."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        self.check_parts(causal=attn_mask is not None or is_causal)
        return cast(Tensor, super().forward(x, attn_mask=attn_mask, is_causal=is_causal))  # type: ignore[misc]


class PairMaskEvaBlock(MaskedParts):
    """Forward of `EvaBlock` and `EvaBlockPostNorm` of `timm.models.eva`; the mask is over pairs of tokens."""

    def forward(
        self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        self.check_parts(causal=attn_mask is not None or is_causal)
        out = super().forward(x, rope=rope, attn_mask=attn_mask, is_causal=is_causal)  # type: ignore[misc]
        return cast(Tensor, out)


class PaddingMaskBlock(MaskedParts):
    """A block that gets a padding mask: it checks the mask for grafts of its attention and its MLP."""

    unmasked = ("attn", "mlp")


def with_padding_mask(site: Site, block: str) -> Site:
    """Return `site` with the block at this path as companion."""
    return replace(site, companions=dict.fromkeys(site.targets, (block,)))


def with_pair_mask(site: Site, block: str) -> Site:
    """Return `site` with the block at this path as companion if it is an MLP."""
    return with_padding_mask(site, block) if site.kind == "mlp" else site
