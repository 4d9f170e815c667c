"""Attention whose keys are a summary of the map, as Twins and PVT v2 have it: all tokens ask, fewer answer."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from attngraft.attention import AttentionGeometry, Projected
from attngraft.hosts.adapter import Site, check_known, head_rows
from attngraft.hosts.sites import global_site
from attngraft.hosts.timm.attention import SelfAttention, by_heads
from attngraft.hosts.timm.family import Look
from attngraft.hosts.timm.maps import map_of, tokens_of


class SubsampledSite(SelfAttention):
    """A projection of the queries, one of the keys and values, and before that a convolution that reduces the map."""

    num_heads: int
    q: nn.Module
    kv: nn.Module
    sr: nn.Module | None
    norm: nn.Module | None

    def summary(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """The tokens (B, Nk, C) on the key side."""
        if self.sr is None:
            return x
        return cast(Tensor, cast(nn.Module, self.norm)(tokens_of(self.sr(map_of(x, grid)))))

    def project(self, x: Tensor, grid: tuple[int, int]) -> Projected:
        keys = self.summary(x, grid)
        k, v = self.kv(keys).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return Projected(by_heads(self.q(x), self.num_heads), k, v, x, keys=keys)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        """`norm` is the summary's, not one of the heads."""
        return cast(Tensor, self.proj(heads.transpose(1, 2).flatten(2)))


def subsampled_site(module: Any, path: str, look: Look, *, argument: str, **tokens: Any) -> Site:
    """The site that `module` is; `argument` is what it calls the size of the map, `tokens` the fields of the query side."""
    check_known(
        module,
        path,
        arguments=("x", argument, "args", "kwargs"),
        children=("q", "kv", "sr", "norm", "pool", "act", "attn_drop", "proj", "proj_drop"),
    )
    rows, columns = (None, None) if module.sr is None else look.leaving(f"{path}.sr")[-2:]
    width, dim = module.proj.in_features // module.num_heads, module.proj.in_features
    starts = {"q": ("q", 0), "k": ("kv", 0), "v": ("kv", dim)}
    geometry = AttentionGeometry(
        **tokens,
        key_tokens=None if rows is None or columns is None else rows * columns,
        heads=module.num_heads,
        key_width=width,
        value_width=width,
        rows={
            role: head_rows(module, name, start=start, width=width, step=width)
            for role, (name, start) in starts.items()
        },
    )
    return global_site(path, geometry)
