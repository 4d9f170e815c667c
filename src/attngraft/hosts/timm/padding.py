"""Blocks of hosts that take patches of images of several sizes: a mask says which tokens only fill up the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from attngraft.attention import GraftedModule
from attngraft.hosts.adapter import Site
from attngraft.hosts.calls import check_call


class PaddedBlock(GraftedModule):
    """It gives the mask to its attention, and not to its MLP: it holds it against the grafts of both."""

    attn: Any
    mlp: Any

    @property
    def in_use(self) -> bool:
        return super().in_use or any(isinstance(each, GraftedModule) and each.in_use for each in (self.attn, self.mlp))

    def check_padding(self, attn_mask: Tensor | None) -> None:
        """Refuse a mask where a graft would let what fills up a batch take part.

        Raises:
            UsageError: it would.
        """
        for module in (self.attn, self.mlp):
            if attn_mask is not None and isinstance(module, GraftedModule):
                check_call(module, padded=True)


def with_mask(site: Site, block: str) -> Site:
    """`site` of the block at this path, which is to know of the mask wherever a graft stands."""
    return replace(site, companions=dict.fromkeys(site.targets, (block,)))
