"""timm's Twins: attention in windows, and attention whose keys are a summary of the map, block by block."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

import torch.nn.functional as F
from timm.models.swin_transformer import window_partition, window_reverse
from timm.models.twins import Block, GlobalSubSampleAttn, LocallyGroupedAttn, Twins
from torch import Tensor

from attngraft.anatomy import AttentionGeometry, Projected, Stage, plain_class
from attngraft.hosts.adapter import Site, check_known, fused_rows
from attngraft.hosts.registry import register_host
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import by_role, mlp_sites, unread_site
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.own_windows import OwnWindows
from attngraft.hosts.timm.subsampled import SubsampledSite, subsampled_site


class GraftedGlobalSubSampleAttn(SubsampledSite, GlobalSubSampleAttn):
    """`timm.models.twins.GlobalSubSampleAttn`."""


class GraftedLocallyGroupedAttn(OwnWindows, LocallyGroupedAttn):
    """`timm.models.twins.LocallyGroupedAttn`: it cuts the map, and puts windows back before the output projection.

    Tokens are cut again behind that, so that grafts see the same windows all the way.
    """

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        windows, present = self.cut(x, size), self.present(x, size)
        tokens = self.sentence(
            self.project(windows, size, present),
            lambda tokens: self.project(tokens, size, present),
            drop=lambda tokens: self.cut(self.proj_drop(self.whole(tokens, size)), size),
        )
        return self.run("attn.end", self.whole(tokens, size))

    def filled(self, size: tuple[int, int]) -> tuple[int, int]:
        """(rows, columns) of the map once zeros have filled up the last windows."""
        rows, columns = (side + -side % self.ws for side in size)
        return rows, columns

    def cut(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, N, C) to (windows, tokens of each, C)."""
        (rows, columns), (height, width) = self.filled(size), size
        maps = F.pad(x.unflatten(1, size), (0, 0, 0, columns - width, 0, rows - height))
        return cast(Tensor, window_partition(maps, (self.ws, self.ws)).flatten(1, 2))

    def whole(self, windows: Tensor, size: tuple[int, int]) -> Tensor:
        """What `cut` was given."""
        maps = window_reverse(windows.unflatten(1, (self.ws, self.ws)), (self.ws, self.ws), *self.filled(size))
        return maps[:, : size[0], : size[1]].flatten(1, 2)

    def present(self, x: Tensor, size: tuple[int, int]) -> Tensor | None:
        """Which tokens of an image's windows are no zeros that fill up, for a mix graft."""
        if self.filled(size) == tuple(size) or not self.grafts_at("mix"):
            return None
        return self.cut(x.new_ones(1, size[0] * size[1], 1), size).squeeze(-1) > 0

    def project(self, x: Tensor, size: tuple[int, int], present: Tensor | None) -> Projected:
        rows, columns = self.filled(size)
        windows = (rows // self.ws) * (columns // self.ws)
        return Projected(*by_role(self.qkv(x), self.num_heads), x, rest=(windows, size), present=present)

    def kernel(self, projected: Projected) -> Tensor:
        return super().kernel(projected._replace(rest=projected.rest[0]))

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        _, size = projected.rest
        return self.cut(self.proj(self.whole(heads.transpose(1, 2).flatten(2), size)), size)


class TimmTwins(TimmFamily):
    """Sites `blocks.<i>.<j>.attn` and `.mlp`."""

    name = "timm.twins"
    summary = "timm Twins (PCPVT and SVT) of any size, features_only too"
    richer: ClassVar = {
        GlobalSubSampleAttn: GraftedGlobalSubSampleAttn,
        LocallyGroupedAttn: GraftedLocallyGroupedAttn,
        **timm_mlp.RICHER,
    }
    models = (Twins,)
    blocks = (Block,)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        embed = look.model.patch_embeds[int(path.split(".")[1])]
        tokens = {"dim": look.entering(path)[-1], "tokens": embed.H * embed.W, "grid": (embed.H, embed.W)}
        kind, attn = plain_class(block.attn), f"{path}.attn"
        if kind is LocallyGroupedAttn:
            yield _windows_site(block.attn, attn, **tokens)
        elif kind is GlobalSubSampleAttn:
            yield subsampled_site(block.attn, attn, look, argument="size", **tokens)
        else:
            yield unread_site(block.attn, attn, **tokens)
        yield from mlp_sites(block.mlp, f"{path}.mlp", **tokens)


def _windows_site(module: Any, path: str, *, dim: int, tokens: int, grid: tuple[int, int]) -> Site:
    check_known(module, path, arguments=("x", "size"), children=("qkv", "attn_drop", "proj", "proj_drop"))
    rows, columns = (-(-side // module.ws) for side in grid)
    width = dim // module.num_heads
    geometry = AttentionGeometry(
        dim=dim,
        tokens=module.ws**2,
        sequences=rows * columns,
        grid=grid,
        window=(module.ws, module.ws),
        heads=module.num_heads,
        key_width=width,
        value_width=width,
        rows=fused_rows(module, "qkv", heads=module.num_heads),
    )
    stages: tuple[Stage, ...] = ("mix", "weights", "heads", "tokens", "attn.window", "attn.end")
    return Site(path=path, kind="attention", geometry=geometry, carriers=dict.fromkeys(stages, path))


register_host(TimmTwins())
