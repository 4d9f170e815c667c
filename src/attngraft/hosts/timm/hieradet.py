"""timm's HieraDet, the image encoder of SAM 2: zero-padded windows, global attention in some blocks, pooled queries."""

from typing import Any, ClassVar, cast

from timm.models import hieradet_sam2 as hieradet
from torch import Tensor, nn

from attngraft.attention import HookPoint, Projected, record_coordinates
from attngraft.hosts.adapter import check_known
from attngraft.hosts.sites import windowed
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import NoDropout, split_heads, split_qkv
from attngraft.hosts.timm.family import ShapeProbe, Sites, TimmFamily, checked_site, map_fields
from attngraft.hosts.timm.windows import PaddedWindows, pad_to_windows, partition, present_tokens

_BLOCK = ("proj", "pool", "norm1", "attn", "ls1", "drop_path1", "norm2", "mlp", "ls2", "drop_path2")


class GraftedMultiScaleAttention(NoDropout, hieradet.MultiScaleAttention):
    """`timm.models.hieradet_sam2.MultiScaleAttention`: maps or windows (B, rows, columns, C).

    If queries are pooled, the tokens on the query side are pooled in the same way as the host's residual.
    """

    ends: tuple[HookPoint, ...] = ("attn.window", "attn.end")

    def forward(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        grid = (x.shape[1], x.shape[2])
        tokens = super().forward(x.flatten(1, 2), grid, present)
        rows, columns = (side // each for side, each in zip(grid, _stride(self.q_pool), strict=True))
        return tokens.unflatten(1, (rows, columns))

    def project(self, x: Tensor, grid: tuple[int, int], present: Tensor | None) -> Projected:
        q, k, v = split_qkv(self.qkv(x), self.num_heads)
        queries = x
        if self.q_pool is not None:
            q = split_heads(self.pooled(q.transpose(1, 2).flatten(2), grid), self.num_heads)
            queries = self.pooled(x, grid)
        return Projected(q, k, v, queries, keys=x, present=present)

    def pooled(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Max-pool tokens (B, N, C)."""
        maps = x.unflatten(1, grid).permute(0, 3, 1, 2)
        return cast(nn.Module, self.q_pool)(maps).permute(0, 2, 3, 1).flatten(1, 2)


class GraftedMultiScaleBlock(PaddedWindows, hieradet.MultiScaleBlock):
    """`timm.models.hieradet_sam2.MultiScaleBlock`: pooled windows merge into a smaller map."""

    def forward(self, x: Tensor) -> Tensor:
        grid, shortcut, x = (x.shape[1], x.shape[2]), x, self.norm1(x)
        if self.dim != self.dim_out:
            shortcut = self.proj(x)
            if self.pool is not None:
                shortcut = self.pool(shortcut.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        x = shortcut + self.drop_path1(self.ls1(self.run("attn.end", self.branch(x, grid))))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))

    def branch(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Apply the attention, which may pool queries, to the windows of a map."""
        if not self.is_windowed:
            return self.attn(x)
        window = self.window_size
        record_coordinates(self, x, lambda maps: partition(pad_to_windows(maps, window), window))
        present = present_tokens(x, window, grid) if self.mixes else None
        windows = hieradet.window_partition(pad_to_windows(x, window), window)
        windows = self.attn(windows) if present is None else self.attn(windows, present)
        rows, columns = (side // each for side, each in zip(grid, self.q_stride or (1, 1), strict=True))
        small = (windows.shape[1], windows.shape[2])
        padded = (rows + -rows % small[0], columns + -columns % small[1])
        return hieradet.window_unpartition(windows, small, padded)[:, :rows, :columns].contiguous()


def _stride(pool: Any) -> tuple[int, int]:
    return (1, 1) if pool is None else tuple(pool.stride)


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    check_known(block, path, arguments=("x",), children=_BLOCK)
    _, rows, columns, dim = shapes.input_shape(path)
    module = block.attn
    window = windowed((rows, columns), tuple(block.window_size) if block.is_windowed else None)
    stride = _stride(module.q_pool)
    if pooled := module.q_pool is not None:  # the output map is smaller
        window["grid"] = None
    yield checked_site(
        module,
        f"{path}.attn",
        block=path,
        fills=True,
        arguments=("x", "present"),
        children=("q_pool", "qkv", "proj"),
        dim=dim,
        **window,
        query_tokens=window["tokens"] // (stride[0] * stride[1]) if pooled else None,
        out_dim=None if module.dim_out == dim else module.dim_out,
    )
    _, rows, columns, dim = shapes.input_shape(f"{path}.mlp")
    yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", **map_fields(dim, rows, columns))


class TimmHieraDet(TimmFamily):
    """Sites `blocks.<i>.attn` and `.mlp`."""

    name = "timm.hieradet"
    summary = "timm HieraDet (SAM 2's image encoder) of any size, including features_only"
    patched: ClassVar = {
        hieradet.MultiScaleAttention: GraftedMultiScaleAttention,
        hieradet.MultiScaleBlock: GraftedMultiScaleBlock,
        **mlp.PATCHED,
    }
    models = (hieradet.HieraDet,)
    blocks: ClassVar = {hieradet.MultiScaleBlock: _sites}
