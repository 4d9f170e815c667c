"""timm's DaViT: attention in windows, and between channels, block by block."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

from timm.models.davit import ChannelBlock, DaVit, SpatialBlock, WindowAttention
from torch import Tensor

from attngraft.attention import Projected, plain_class
from attngraft.hosts.adapter import Site, check_known, fused_rows
from attngraft.hosts.registry import register_host
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import by_role, mlp_sites
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.maps import map_of, tokens_of
from attngraft.hosts.timm.refused import channel_site
from attngraft.hosts.timm.still_windows import StillWindows, Undropped, windows_site

_BLOCK = ("cpe1", "norm1", "attn", "drop_path1", "cpe2", "norm2", "mlp", "drop_path2")


class GraftedWindowAttention(Undropped, WindowAttention):
    """`timm.models.davit.WindowAttention`."""

    def project(self, x: Tensor, present: Tensor | None = None) -> Projected:
        return Projected(*by_role(self.qkv(x), self.num_heads), x, present=present)


class GraftedSpatialBlock(StillWindows, SpatialBlock):
    """`timm.models.davit.SpatialBlock`: maps (B, C, rows, columns), positions by convolutions around the attention."""

    def forward(self, x: Tensor) -> Tensor:
        grid, host = x.shape[-2:], cast(Any, self)  # timm's attributes are None in the form without an MLP
        tokens = tokens_of(self.cpe1(x))
        branch = self.branch(self.norm1(tokens).unflatten(1, grid), self.window_size)
        x = self.cpe2(map_of(tokens + host.drop_path1(branch.flatten(1, 2)), grid))
        if host.mlp is None:
            return x
        tokens = tokens_of(x)
        return map_of(tokens + host.drop_path2(host.mlp(host.norm2(tokens))), grid)


class TimmDaVit(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.<k>.attn` and `.mlp`; k is a name where the host names its blocks."""

    name = "timm.davit"
    summary = "timm DaViT of any size (its blocks with windows, and all MLPs), features_only too"
    patched: ClassVar = {
        WindowAttention: GraftedWindowAttention,
        SpatialBlock: GraftedSpatialBlock,
        **timm_mlp.PATCHED,
    }
    models = (DaVit,)
    blocks = (SpatialBlock, ChannelBlock)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        _, dim, rows, columns = look.entering(path)
        module, attn, grid = block.attn, f"{path}.attn", (rows, columns)
        if plain_class(block) is SpatialBlock:
            check_known(block, path, arguments=("x",), children=_BLOCK)
            check_known(module, attn, arguments=("x", "args", "kwargs"), children=("qkv", "proj", "softmax"))
            width = dim // module.num_heads
            yield windows_site(
                attn,
                path,
                window=tuple(block.window_size),
                grid=grid,
                dim=dim,
                heads=module.num_heads,
                widths=(width, width),
                rows=fused_rows(module, "qkv", heads=module.num_heads),
            )
        else:
            instead = "name blocks with windows"
            yield channel_site(attn, instead=instead, dim=dim, tokens=rows * columns, grid=grid)
        if block.mlp is not None:
            yield from mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=rows * columns, grid=grid)


register_host(TimmDaVit())
