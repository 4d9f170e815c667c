"""Attention in which only the class token asks, as several of timm's families have it: one query, all tokens answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from attngraft.attention import CLASS, AttentionGeometry, HeadRows, Projected
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.sites import global_site
from attngraft.hosts.timm.attention import SelfAttention


class ClassSite(SelfAttention):
    """Token 0 asks, and it alone leaves: (B, N, C) to (B, 1, C). An adapter supplies `split`."""

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, H, 1, d), k and v (B, H, N, d)."""
        raise TypeError(f"{type(self).__name__} does not say how it splits")

    def project(self, x: Tensor) -> Projected:
        q, k, v = self.split(x)
        return Projected(q, k, v, x[:, :1], keys=x)


def class_site(
    module: Any, path: str, *, children: tuple[str, ...], rows: Mapping[str, tuple[HeadRows, ...]], **tokens: Any
) -> Site:
    """The site that `module` is; `children` make its q, k and v, `tokens` are the fields of `Geometry` on the key side."""
    check_known(module, path, arguments=("x", "args", "kwargs"), children=(*children, "attn_drop", "proj", "proj_drop"))
    width = module.proj.in_features // module.num_heads
    geometry = AttentionGeometry(
        **tokens,
        query_tokens=1,
        prefix=CLASS,
        heads=module.num_heads,
        key_width=width,
        value_width=width,
        rows=rows,
    )
    return global_site(path, geometry)
