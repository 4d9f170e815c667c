"""Blocks whose windows do not shift, and attention in them without dropout, as DaViT and TinyViT have both."""

from __future__ import annotations

import torch.nn.functional as F
from timm.models.swin_transformer import window_partition, window_reverse
from torch import Tensor

from attngraft.anatomy import AttentionGeometry, HeadRows, Projected, Stage
from attngraft.hosts.adapter import Site
from attngraft.hosts.timm.attention import SelfAttention
from attngraft.hosts.timm.windows import FilledWindows


class StillWindows(FilledWindows):
    """The maps are (B, rows, columns, C); zeros fill up the last windows."""

    def branch(self, x: Tensor, window: tuple[int, int]) -> Tensor:
        """A map through the attention of its windows."""
        height, width = x.shape[1:3]
        rows, columns = (side + -side % each for side, each in zip((height, width), window, strict=True))
        fill = (0, 0, 0, columns - width, 0, rows - height)
        windows = window_partition(F.pad(x, fill), window).flatten(1, 2)
        if (rows, columns) != (height, width) and self.mixes:
            present = window_partition(F.pad(x.new_ones(1, height, width, 1), fill), window)
            windows = self.attn(windows, present.flatten(1) > 0)
        else:
            windows = self.attn(windows)
        maps = window_reverse(windows.unflatten(1, window), window, rows, columns)
        return self.run("attn.end", maps[:, :height, :width])


class Undropped(SelfAttention):
    """Without dropout, of weights or of what leaves."""

    ends: tuple[Stage, ...] = ("attn.window",)

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
        tokens=window[0] * window[1],
        sequences=-(-grid[0] // window[0]) * -(-grid[1] // window[1]),
        grid=grid,
        window=window,
        heads=heads,
        key_width=widths[0],
        value_width=widths[1],
        rows=rows,
        query_key_parameters=biases,
        score_rows=biases,
    )
    inside: tuple[Stage, ...] = ("mix", "weights", "heads", "tokens", "attn.window")
    return Site(
        path=path,
        kind="attention",
        geometry=geometry,
        carriers={**dict.fromkeys(inside, path), "attn.end": block},
        informants={"mix": (block,)},
    )
