"""timm's Twins: attention in windows, and attention whose keys are a summary of the map, block by block."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from timm.models.twins import Block, GlobalSubSampleAttn, LocallyGroupedAttn, Twins
from torch import Tensor

from attngraft.attention import AttentionGeometry, Projected, plain_class, record_coordinates
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import fused_heads, window_site, windowed
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import by_role, mlp_sites, unread_site
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.own_windows import OwnWindows
from attngraft.hosts.timm.subsampled import SubsampledSite, subsampled_site
from attngraft.hosts.timm.windows import cut, fill, present_tokens, put_back


class GraftedGlobalSubSampleAttn(SubsampledSite, GlobalSubSampleAttn):
    """`timm.models.twins.GlobalSubSampleAttn`."""


class GraftedLocallyGroupedAttn(OwnWindows, LocallyGroupedAttn):
    """`timm.models.twins.LocallyGroupedAttn`: it cuts the map, and puts windows back before the output projection.

    Tokens are cut again behind that, so that grafts see the same windows all the way.
    """

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        windows = self.cut(x, size)
        record_coordinates(self, x.unflatten(1, size), lambda maps: self.cut(maps.flatten(1, 2), size))
        seen = present_tokens(x, self.window, size) if self.grafts_at("mix") else None
        tokens = self.forward_projected(
            self.project(windows, size, seen),
            lambda tokens: self.project(tokens, size, seen),
            drop=lambda tokens: self.cut(self.proj_drop(self.whole(tokens, size)), size),
        )
        return self.run("attn.end", self.whole(tokens, size))

    @property
    def window(self) -> tuple[int, int]:
        """(rows, columns) of a window."""
        return self.ws, self.ws

    def cut(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, N, C) to (windows, tokens of each, C)."""
        return cut(fill(x.unflatten(1, size), self.window), self.window)

    def whole(self, windows: Tensor, size: tuple[int, int]) -> Tensor:
        """What `cut` was given."""
        return put_back(windows, self.window, size).flatten(1, 2)

    def project(self, x: Tensor, size: tuple[int, int], seen: Tensor | None) -> Projected:
        windows = -(-size[0] // self.ws) * -(-size[1] // self.ws)
        return Projected(*by_role(self.qkv(x), self.num_heads), x, rest=(windows, size), present=seen)

    def kernel(self, projected: Projected) -> Tensor:
        return super().kernel(projected._replace(rest=projected.rest[0]))

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        _, size = projected.rest
        return self.cut(self.proj(self.whole(heads.transpose(1, 2).flatten(2), size)), size)


class TimmTwins(TimmFamily):
    """Sites `blocks.<i>.<j>.attn` and `.mlp`."""

    name = "timm.twins"
    summary = "timm Twins (PCPVT and SVT) of any size, features_only too"
    patched: ClassVar = {
        GlobalSubSampleAttn: GraftedGlobalSubSampleAttn,
        LocallyGroupedAttn: GraftedLocallyGroupedAttn,
        **timm_mlp.PATCHED,
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
    geometry = AttentionGeometry(dim=dim, **windowed(grid, (module.ws, module.ws)), **fused_heads(module))
    return window_site(path, geometry)


register_host(TimmTwins())
