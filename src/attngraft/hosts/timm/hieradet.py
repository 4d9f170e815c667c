"""timm's HieraDet, the image encoder of SAM 2: windows that zeros fill up, whole maps in some blocks, pooled queries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

import torch.nn.functional as F
from timm.models.hieradet_sam2 import (
    HieraDet,
    MultiScaleAttention,
    MultiScaleBlock,
    window_partition,
    window_unpartition,
)
from torch import Tensor, nn

from attngraft.attention import AttentionGeometry, HookPoint, Projected, record_coordinates
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import fused_heads, global_site, window_site, windowed
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import by_role, mlp_sites
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.still_windows import Undropped
from attngraft.hosts.timm.windows import FilledWindows

_BLOCK = ("proj", "pool", "norm1", "attn", "ls1", "drop_path1", "norm2", "mlp", "ls2", "drop_path2")


class GraftedMultiScaleAttention(Undropped, MultiScaleAttention):
    """`timm.models.hieradet_sam2.MultiScaleAttention`: maps or windows (B, rows, columns, C).

    Where queries are pooled, the tokens on their side are too, as the host pools those that go around the attention.
    """

    ends: tuple[HookPoint, ...] = ("attn.window", "attn.end")

    def forward(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        grid = (x.shape[1], x.shape[2])
        tokens = super().forward(x.flatten(1, 2), grid, present)
        rows, columns = (side // each for side, each in zip(grid, _stride(self.q_pool), strict=True))
        return tokens.unflatten(1, (rows, columns))

    def project(self, x: Tensor, grid: tuple[int, int], present: Tensor | None) -> Projected:
        q, k, v = by_role(self.qkv(x), self.num_heads)
        queries = x
        if self.q_pool is not None:
            pooled = self.pooled(q.transpose(1, 2).flatten(2), grid)
            q, queries = pooled.unflatten(-1, (self.num_heads, -1)).transpose(1, 2), self.pooled(x, grid)
        return Projected(q, k, v, queries, keys=x, present=present)

    def pooled(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """The largest of each channel among neighbours, of tokens (B, N, C)."""
        maps = x.unflatten(1, grid).permute(0, 3, 1, 2)
        return cast(nn.Module, self.q_pool)(maps).permute(0, 2, 3, 1).flatten(1, 2)


class GraftedMultiScaleBlock(FilledWindows, MultiScaleBlock):
    """`timm.models.hieradet_sam2.MultiScaleBlock`: pooled windows are put back smaller."""

    def forward(self, x: Tensor) -> Tensor:
        grid, shortcut, x = (x.shape[1], x.shape[2]), x, self.norm1(x)
        if self.dim != self.dim_out:
            shortcut = self.proj(x)
            if self.pool is not None:
                shortcut = self.pool(shortcut.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        x = shortcut + self.drop_path1(self.ls1(self.run("attn.end", self.branch(x, grid))))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))

    def branch(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """A map through the attention of its windows, which may pool it."""
        if not self.is_windowed:
            return self.attn(x)
        window = self.window_size
        short = [-side % each for side, each in zip(grid, window, strict=True)]
        fill = (0, 0, 0, short[1], 0, short[0])
        record_coordinates(self, x, lambda maps: window_partition(F.pad(maps, fill), window))
        windows = window_partition(F.pad(x, fill), window)
        if any(short) and self.mixes:
            shown = window_partition(F.pad(x.new_ones(1, *grid, 1), fill), window)
            windows = self.attn(windows, shown.flatten(1) > 0)
        else:
            windows = self.attn(windows)
        rows, columns = (side // each for side, each in zip(grid, self.q_stride or (1, 1), strict=True))
        small = (windows.shape[1], windows.shape[2])
        filled = (rows + -rows % small[0], columns + -columns % small[1])
        return window_unpartition(windows, small, filled)[:, :rows, :columns].contiguous()


def _stride(pool: Any) -> tuple[int, int]:
    return (1, 1) if pool is None else tuple(pool.stride)


class TimmHieraDet(TimmFamily):
    """Sites `blocks.<i>.attn` and `.mlp`."""

    name = "timm.hieradet"
    summary = "timm HieraDet (SAM 2's image encoder) of any size, features_only too"
    patched: ClassVar = {
        MultiScaleAttention: GraftedMultiScaleAttention,
        MultiScaleBlock: GraftedMultiScaleBlock,
        **timm_mlp.PATCHED,
    }
    models = (HieraDet,)
    blocks = (MultiScaleBlock,)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        check_known(block, path, arguments=("x",), children=_BLOCK)
        _, rows, columns, dim = look.entering(path)
        yield _attention_site(block, path, dim, (rows, columns))
        _, rows, columns, dim = look.entering(f"{path}.mlp")
        yield from mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=rows * columns, grid=(rows, columns))


def _attention_site(block: Any, path: str, dim: int, grid: tuple[int, int]) -> Site:
    module, attn = block.attn, f"{path}.attn"
    check_known(module, attn, arguments=("x", "present"), children=("q_pool", "qkv", "proj"))
    pooled = module.q_pool is not None
    window = windowed(grid, tuple(block.window_size) if block.is_windowed else None)
    rows, columns = _stride(module.q_pool)
    if pooled:  # the map that leaves is smaller
        window["grid"] = None
    geometry = AttentionGeometry(
        dim=dim,
        **window,
        query_tokens=window["tokens"] // (rows * columns) if pooled else None,
        out_dim=None if module.dim_out == dim else module.dim_out,
        **fused_heads(module),
    )
    return window_site(attn, geometry, block=path, fills=True) if block.is_windowed else global_site(attn, geometry)


register_host(TimmHieraDet())
