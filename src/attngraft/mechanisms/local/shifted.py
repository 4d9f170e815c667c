"""Local attention one offset after another: for multipliers by channel, which no product of matrices knows, and for strides.

Of an image there are, channels first: its values with zeros around them, its weights, what it gets, and a few buffers of the
size of what it gets. Nothing is k * k times as large.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.mechanisms.local.offsets import Neighborhood


class Shifted:
    """Room for an image (Y, X, C) with zeros around it, seen as (H, D, Y', X') at any offset.

    Args:
        like: an image. sizes: Y' and X'.
    """

    def __init__(self, like: Tensor, heads: int, neighborhood: Neighborhood, *, sizes: Sequence[int]) -> None:
        self._near, self._heads, self._sizes = neighborhood, heads, sizes
        (height, width, channels), radius = like.shape, neighborhood.radius
        self._padded = like.new_zeros(channels, height + 2 * radius, width + 2 * radius)
        inside = self._padded[:, radius : radius + height, radius : radius + width]
        self.inside = inside.permute(1, 2, 0)  #: (Y, X, C), to be filled or read

    def clear(self) -> None:
        """Zeros everywhere."""
        self._padded.zero_()

    def at_every_offset(self) -> Iterator[Tensor]:
        """(H, D, Y', X'), views: what every pixel sees in that direction."""
        near, rows, columns = self._near, *self._sizes
        for i in range(near.size):
            for j in range(near.size):
                top, left = i * near.dilation, j * near.dilation
                seen = self._padded[
                    :,
                    top : top + (rows - 1) * near.stride + 1 : near.stride,
                    left : left + (columns - 1) * near.stride + 1 : near.stride,
                ]
                yield seen.unflatten(0, (self._heads, -1))


def sums(values: Shifted, weights: Tensor, multiplier: Tensor | None, out: Tensor, room: Tensor) -> None:
    """To `out` (H, D, Y', X'): by weights (H, K, Y', X') and multiplier (K, H, D, 1, 1). `room` is like `out`.

    Rooms are the caller's, to serve all images: fresh memory of this size costs about as much as a few offsets.
    """
    out.zero_()
    for offset, seen in enumerate(values.at_every_offset()):
        if multiplier is not None:
            seen = torch.mul(seen, multiplier[offset], out=room)
        out.addcmul_(seen, weights[:, offset].unsqueeze(1))


def gradients(
    values: Shifted,
    to_values: Shifted,
    weights: Tensor,
    multiplier: Tensor | None,
    to_out: Tensor,
    to_weights: Tensor,
    to_multiplier: Tensor | None,
    rooms: tuple[Tensor, Tensor],
) -> None:
    """Fill `to_values` and `to_weights` (H, K, Y', X'), add to `to_multiplier` (K, H, D, 1, 1). Rooms are like `to_out`."""
    to_values.clear()
    products, given = rooms
    heads, width = to_out.shape[:2]
    ones, to_offset = to_out.new_ones(heads, 1, width), torch.empty_like(to_out[:, :1]).flatten(2)
    for offset, (seen, to_seen) in enumerate(zip(values.at_every_offset(), to_values.at_every_offset(), strict=True)):
        flat = torch.mul(to_out, seen, out=products).flatten(2)
        by = ones if multiplier is None else multiplier[offset].view(heads, 1, width)
        to_weights[:, offset].flatten(1).copy_(torch.bmm(by, flat, out=to_offset).squeeze(1))
        own = weights[:, offset].unsqueeze(1)
        if multiplier is None or to_multiplier is None:
            to_seen.addcmul_(to_out, own)
        else:
            # rows times maps: maps times columns, which is the same, takes ten times as long
            to_multiplier[offset].view(heads, 1, width).baddbmm_(own.flatten(2), flat.transpose(1, 2))
            to_seen.addcmul_(torch.mul(to_out, own, out=given), multiplier[offset])


def read_at_neighbors(maps: Tensor, neighborhood: Neighborhood) -> Tensor:
    """A map for each offset (B, H, K, Y, X), read at that neighbor of every pixel; 0 outside of the map."""
    near, (rows, columns) = neighborhood, maps.shape[-2:]
    padded = F.pad(maps, (near.radius,) * 4)
    moved = []
    for offset in range(near.offsets):
        top, left = (near.dilation * step for step in divmod(offset, near.size))
        moved.append(padded[:, :, offset, top : top + rows, left : left + columns])
    return torch.stack(moved, 2)
