"""timm's Twins: attention in windows, and attention with subsampled keys, in alternate blocks."""

from typing import Any, ClassVar

from timm.models.twins import Block, GlobalSubSampleAttn, LocallyGroupedAttn, Twins
from torch import Tensor

from attngraft.attention import Projected, plain_class, record_coordinates
from attngraft.hosts.family import ShapeProbe, Sites
from attngraft.hosts.patched import patch_classes
from attngraft.hosts.sites import windowed
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import SubsampledKeys, split_qkv
from attngraft.hosts.timm.family import TimmFamily, checked_site, map_fields, subsampled_site, unread_site
from attngraft.hosts.timm.windows import WindowAxisSite, merge_windows, pad_to_windows, partition, present_tokens


class GraftedLocallyGroupedAttn(WindowAxisSite, LocallyGroupedAttn):
    """`timm.models.twins.LocallyGroupedAttn`: partitions its input, and merges windows before the output projection.

    Tokens are partitioned again after the projection, so grafts get the same windows at all hook points.
    """

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        windows = self.partition(x, size)
        record_coordinates(self, x.unflatten(1, size), lambda maps: self.partition(maps.flatten(1, 2), size))
        present = present_tokens(x, self.window, size) if self.grafts_at("mix") else None
        tokens = self.forward_projected(
            self.project(windows, size, present),
            lambda tokens: self.project(tokens, size, present),
            drop=lambda tokens: self.partition(self.proj_drop(self.merge_windows(tokens, size)), size),
        )
        return self.run("attn.end", self.merge_windows(tokens, size))

    @property
    def window(self) -> tuple[int, int]:
        """Return (rows, columns) of a window."""
        return self.ws, self.ws

    def partition(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """Partition (B, N, C) into (windows, tokens of a window, C)."""
        return partition(pad_to_windows(x.unflatten(1, size), self.window), self.window)

    def merge_windows(self, windows: Tensor, size: tuple[int, int]) -> Tensor:
        """Undo `partition`."""
        return merge_windows(windows, self.window, size).flatten(1, 2)

    def project(self, x: Tensor, size: tuple[int, int], present: Tensor | None) -> Projected:
        windows = -(-size[0] // self.ws) * -(-size[1] // self.ws)
        q, k, v = split_qkv(self.qkv(x), self.num_heads)
        return Projected(q, k, v, x, rest=(windows, size), present=present)

    def kernel(self, projected: Projected) -> Tensor:
        return super().kernel(projected.replace(rest=projected.rest[0]))

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        _, size = projected.rest
        return self.partition(self.proj(self.merge_windows(heads.transpose(1, 2).flatten(2), size)), size)


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    embed = shapes.model.patch_embeds[int(path.split(".")[1])]
    dim, grid = shapes.input_shape(path)[-1], (embed.H, embed.W)
    fields, module, attn = map_fields(dim, *grid), block.attn, f"{path}.attn"
    if plain_class(module) is LocallyGroupedAttn:
        window = windowed(grid, (module.ws, module.ws))
        yield checked_site(module, attn, arguments=("x", "size"), dim=dim, **window)
    elif plain_class(module) is GlobalSubSampleAttn:
        yield subsampled_site(module, attn, shapes, argument="size", **fields)
    else:
        yield unread_site(module, attn, **fields)
    yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", **fields)


class TimmTwins(TimmFamily):
    """Sites `blocks.<i>.<j>.attn` and `.mlp`."""

    name = "timm.twins"
    summary = "timm Twins (PCPVT and SVT) of any size, including features_only"
    patched: ClassVar = {
        **patch_classes(SubsampledKeys, GlobalSubSampleAttn, module=__name__),
        LocallyGroupedAttn: GraftedLocallyGroupedAttn,
        **mlp.PATCHED,
    }
    models = (Twins,)
    blocks: ClassVar = {Block: _sites}
