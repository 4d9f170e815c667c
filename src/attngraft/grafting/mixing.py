"""What a mix graft adds to a site in MACs: it takes the place of the host's own mix, so that is counted and taken off."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attngraft.attention import AttentionGeometry, AttentionSite, Graft, Projected


class _Site(AttentionSite, nn.Module):
    """Attention of a geometry's widths, on tensors without storage."""

    fused_attn = False

    def __init__(self, geometry: AttentionGeometry, mixer: Graft | None) -> None:
        super().__init__()
        self._geometry = geometry
        self.scale, self.attn_drop = 1.0, nn.Dropout(0.0)
        width = geometry.heads * (2 * geometry.key_width + geometry.value_width)
        self.qkv = nn.Linear(geometry.dim, width, bias=False, device="meta")
        self.proj = nn.Linear(
            geometry.heads * geometry.value_width, geometry.width("tokens"), bias=False, device="meta"
        )
        self.grafts = nn.ModuleDict({} if mixer is None else {"mixer": mixer})

    def project(self, x: Tensor, *args: Any, **kwargs: Any) -> Projected:
        site = self._geometry
        heads = self.qkv(x).unflatten(-1, (site.heads, -1)).transpose(1, 2)
        q, k, v = heads.split((site.key_width, site.key_width, site.value_width), dim=-1)
        return Projected(q, k, v, x)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return cast(Tensor, self.proj(heads.transpose(1, 2).flatten(2)))

    def drop(self, tokens: Tensor) -> Tensor:
        return tokens


def mix_macs(mixer: Graft, geometry: AttentionGeometry) -> int:
    """Multiply-adds that `mixer` adds for one input; less than none where it does without what the host does.

    Projections that it runs again (sequential forms) count, as they run twice.
    """
    counts = []
    x = torch.empty(geometry.sequences, cast(int, geometry.tokens), geometry.dim, device="meta")
    for each in (mixer, None):
        site = _Site(geometry, each).eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            site(x)
        counts.append(counter.get_total_flops() // 2)
    return counts[0] - counts[1]
