"""Local attention with a multiplier per channel or with strides, which banded.py does not support.

Images are processed one by one, with zero-padded values, weights and output channels first. Outputs are computed for a few
channels and rows at a time, with all neighbors in one buffer; gradients one offset at a time, in buffers of the size of an
image's output. No tensor is k * k times as large as an image.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.mechanisms.local.geometry import Neighborhood

#: channels per step, approximate size of the buffer for their neighbors, and largest share of an image's neighbors in it;
#: chosen so that the buffer fits a cache and the operations are few
CHANNELS, NUMBERS, PART = 32, 2**21, 1 / 8


class Shifted:
    """Memory for an image (Y, X, C) padded with zeros, with views (H, D, Y', X') at every offset.

    Args:
        like: an image.
        sizes: Y' and X'.
    """

    def __init__(self, like: Tensor, heads: int, neighborhood: Neighborhood, *, sizes: Sequence[int]) -> None:
        self._near, self.heads, self.sizes = neighborhood, heads, sizes
        (height, width, channels), radius = like.shape, neighborhood.radius
        self._padded = like.new_zeros(channels, height + 2 * radius, width + 2 * radius)
        inside = self._padded[:, radius : radius + height, radius : radius + width]
        self.inside = inside.permute(1, 2, 0)  #: (Y, X, C), to be filled or read

    def clear(self) -> None:
        """Set everything to zero."""
        self._padded.zero_()

    def neighbors(self, channels: slice, top: int, rows: int) -> Tensor:
        """Return the neighbors of the pixels of some rows in some channels: (c, k, k, rows, X'), a view."""
        near, strides = self._near, self._padded.stride()
        steps = (
            strides[0],
            *(near.dilation * step for step in strides[1:]),
            *(near.stride * step for step in strides[1:]),
        )
        shape = channels.stop - channels.start, near.size, near.size, rows, self.sizes[1]
        return self._padded.as_strided(shape, steps, channels.start * strides[0] + top * near.stride * strides[1])

    def at_every_offset(self) -> Iterator[Tensor]:
        """Yield the neighbors of every pixel at each offset: (H, D, Y', X'), views."""
        near, rows, columns = self._near, *self.sizes
        for i in range(near.size):
            for j in range(near.size):
                top, left = i * near.dilation, j * near.dilation
                seen = self._padded[
                    :,
                    top : top + (rows - 1) * near.stride + 1 : near.stride,
                    left : left + (columns - 1) * near.stride + 1 : near.stride,
                ]
                yield seen.unflatten(0, (self.heads, -1))


class Sums:
    """The outputs of images of one shape: neighbors times weights, summed by a product with the multiplier.

    Args:
        values: memory for the values of an image.
        multiplier: (C, K).
    """

    def __init__(self, values: Shifted, multiplier: Tensor) -> None:
        self._values, self._multiplier = values, multiplier.unsqueeze(1)
        rows, columns = values.sizes
        channels, offsets = multiplier.shape
        self._width = channels // values.heads
        self._group = min(CHANNELS, self._width)
        numbers = min(NUMBERS, int(PART * channels * offsets * rows * columns))
        self._strip = min(max(numbers // (self._group * offsets * columns), 1), rows)
        self._buffer = multiplier.new_empty(self._group * offsets * self._strip * columns)
        self._sums = multiplier.new_empty(channels * self._strip * columns)

    def fill(self, weights: Tensor, out: Tensor) -> None:
        """Write the output (Y', X', C) of the image in `values`, by weights (H, K, Y', X')."""
        height, columns, channels = out.shape
        for top in range(0, height, self._strip):
            rows = min(self._strip, height - top)
            sums = self._sums[: channels * rows * columns].view(channels, 1, -1)
            for first in range(0, channels, self._width):
                of_head = weights[first // self._width, :, top : top + rows]
                for start in range(first, first + self._width, self._group):
                    some = slice(start, min(start + self._group, first + self._width))
                    neighbors = self._values.neighbors(some, top, rows)
                    buffer = self._buffer[: neighbors.numel()].view(neighbors.shape)
                    weighted = torch.mul(neighbors, of_head.view(neighbors.shape[1:]), out=buffer)
                    torch.bmm(self._multiplier[some], weighted.flatten(1, 2).flatten(2), out=sums[some])
            out[top : top + rows].copy_(sums.view(channels, rows, columns).permute(1, 2, 0))


def gradients(
    values: Shifted,
    to_values: Shifted,
    weights: Tensor,
    multiplier: Tensor | None,
    to_out: Tensor,
    to_weights: Tensor,
    to_multiplier: Tensor | None,
    buffers: Sequence[Tensor],
) -> None:
    """Fill `to_values` and `to_weights` (H, K, Y', X'), and add to `to_multiplier` (K, H, D, 1, 1).

    Both `buffers` have the shape of `to_out`.
    """
    to_values.clear()
    products, weighted = buffers
    heads, width = to_out.shape[:2]
    ones, to_offset = to_out.new_ones(heads, 1, width), torch.empty_like(to_out[:, :1]).flatten(2)
    for offset, (seen, to_seen) in enumerate(zip(values.at_every_offset(), to_values.at_every_offset(), strict=True)):
        flat = torch.mul(to_out, seen, out=products).flatten(2)
        by = ones if multiplier is None else multiplier[offset].view(heads, 1, width)
        to_weights[:, offset].flatten(1).copy_(torch.bmm(by, flat, out=to_offset).squeeze(1))
        weight = weights[:, offset].unsqueeze(1)
        if multiplier is None or to_multiplier is None:
            to_seen.addcmul_(to_out, weight)
        else:
            # rows times maps; the equivalent product, maps times columns, would take ten times as long
            to_multiplier[offset].view(heads, 1, width).baddbmm_(weight.flatten(2), flat.transpose(1, 2))
            to_seen.addcmul_(torch.mul(to_out, weight, out=weighted), multiplier[offset])


def read_at_neighbors(maps: Tensor, neighborhood: Neighborhood) -> Tensor:
    """Return maps (B, H, K, Y, X), the map of each offset read at that neighbor of every pixel; 0 outside."""
    near, (rows, columns) = neighborhood, maps.shape[-2:]
    padded = F.pad(maps, (near.radius,) * 4)
    moved = []
    for offset in range(near.offsets):
        top, left = (near.dilation * step for step in divmod(offset, near.size))
        moved.append(padded[:, :, offset, top : top + rows, left : left + columns])
    return torch.stack(moved, 2)
