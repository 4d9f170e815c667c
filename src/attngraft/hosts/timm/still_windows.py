"""Blocks whose windows do not shift, and attention in them without dropout, as DaViT and TinyViT have both."""

from __future__ import annotations

from torch import Tensor

from attngraft.attention import AttentionGeometry, HeadRows, HookPoint, Projected, record_coordinates
from attngraft.hosts.adapter import Site
from attngraft.hosts.sites import window_site, windowed
from attngraft.hosts.timm.attention import SelfAttention
from attngraft.hosts.timm.windows import FilledWindows, cut, fill, present_tokens, put_back


class StillWindows(FilledWindows):
    """The maps are (B, rows, columns, C); zeros fill up the last windows."""

    def branch(self, x: Tensor, window: tuple[int, int]) -> Tensor:
        """A map through the attention of its windows."""
        grid = x.shape[1:3]
        record_coordinates(self, x, lambda maps: cut(fill(maps, window), window))
        seen = present_tokens(x, window, grid) if self.mixes else None
        windows = cut(fill(x, window), window)
        windows = self.attn(windows) if seen is None else self.attn(windows, seen)
        return self.run("attn.end", put_back(windows, window, grid))


class Undropped(SelfAttention):
    """Without dropout, of weights or of what leaves."""

    ends: tuple[HookPoint, ...] = ("attn.window",)

    def dropped(self) -> float:
        return 0.0

    def spread(self, weights: Tensor, projected: Projected) -> Tensor:
        return weights @ projected.v

    def drop(self, tokens: Tensor) -> Tensor:
        return tokens


def windows_site(
    path: str,
    block: str,
    *,
    window: tuple[int, int],
    grid: tuple[int, int],
    dim: int,
    heads: int,
    widths: tuple[int, int],
    rows: dict[str, tuple[HeadRows, ...]],
    biases: tuple[str, ...] = (),
) -> Site:
    """The site of the attention at `path`, whose windows are put back by the block at `block`.

    `widths` are those of keys and values; `biases` are parameters that serve only the scores, and count heads first.
    """
    geometry = AttentionGeometry(
        dim=dim,
        **windowed(grid, window),
        heads=heads,
        key_width=widths[0],
        value_width=widths[1],
        rows=rows,
        query_key_parameters=biases,
        score_rows=biases,
    )
    return window_site(path, geometry, block=block, fills=True)
