"""Attention that timm's hosts give maps (B, C, rows, columns) and that projects by convolutions; grafts see tokens."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from attngraft.attention import LinearLayer, Projected
from attngraft.hosts.timm.attention import SelfAttention
from attngraft.hosts.timm.maps import map_of, tokens_of


class ConvAttention(SelfAttention):
    """`project` takes the map's size as `grid`, and puts it into `rest`."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        grid = (x.shape[-2], x.shape[-1])
        return map_of(super().forward(tokens_of(x), *args, grid=grid, **kwargs), grid)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return tokens_of(self.proj(map_of(heads.transpose(-1, -2).flatten(1, 2).transpose(1, 2), projected.rest)))

    def output_layer(self) -> LinearLayer | None:
        return self.proj if isinstance(self.proj, nn.Conv2d) else None
