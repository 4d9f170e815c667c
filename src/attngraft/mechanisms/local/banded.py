"""Weights of neighborhoods as the bands of matrices, so that the sums over neighbors are products of matrices.

For one row i of the neighborhood, the neighbors of a block of T positions lie within S = T + reach positions (`Strip`). With
each position's weights on the band that starts at the diagonal of a T x S matrix, and zeros elsewhere,

    sum over i of band_i (T x S) @ values_i (S x D)        is the output of the block,
    the same band of gradient (T x D) @ values_i^T (D x S)  is the gradient of the weights.

A product multiplies S / k times more numbers than necessary, but is many times faster than visiting every neighbor.
Bands are written without a loop: rows of S + 1 numbers, weights first, are bands when read S at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attngraft.mechanisms.local.geometry import Neighborhood

#: number of positions in a block: larger blocks mean larger products, with a larger share of zeros
BLOCK = 16
#: approximate number of values in a strip, which remain in the cache for all rows of the neighborhood
NUMBERS = 2**19
#: largest number of values in a stack; images of this size are not faster when stacked
STACKED_NUMBERS = 2**16


@dataclass(frozen=True)
class Stack:
    """Small images stacked into one tall image, to amortize the overhead per operation.

    The rows of zeros between two images are padding for both.
    """

    batch: int
    height: int  #: rows of an image
    gap: int  #: rows of zeros below each image
    count: int  #: images in a stack; the last stack may contain images of zeros

    @classmethod
    def of(cls, values: Tensor, heads: int, neighborhood: Neighborhood) -> Stack:
        """Stack values (B, Y, X, C), with gaps as large as a neighborhood's radius and one block of positions (`Strip`)."""
        batch, height, columns, channels = values.shape
        gap = neighborhood.radius + -(-BLOCK // (heads * (columns + neighborhood.reach)))
        most = STACKED_NUMBERS // ((height + gap) * columns * channels) if neighborhood.stride == 1 else 1
        stacks = -(-batch // max(most, 1))
        return cls(batch, height, gap, -(-batch // stacks))

    def stack(self, maps: Tensor) -> Tensor:
        """Return (B, Y, X, N) as (stacks, rows, X, N)."""
        if self.count == 1:
            return maps
        stacks = -(-self.batch // self.count)
        padded = maps.new_zeros(stacks * self.count, self.height + self.gap, *maps.shape[2:])
        padded[: self.batch, : self.height].copy_(maps)
        return padded.view(stacks, -1, *maps.shape[2:])

    def unstack(self, maps: Tensor) -> Tensor:
        """Return (stacks, rows, X, N) as (B, Y, X, N), contiguous."""
        if self.count == 1:
            return maps
        single = maps.view(-1, self.height + self.gap, *maps.shape[2:])
        return single[: self.batch, : self.height].contiguous()


@dataclass(frozen=True)
class Strip:
    """Rows of a map and the zeros around them, as one sequence of pixels.

    A row of the map is repeated per head, one head after another, so pixel (y, h, x) has position p = (y H + h) wide + x,
    and its neighbor (i, j) is at p + i d H wide + j d, at the same distance from every p. Positions are processed `BLOCK` at
    a time: the neighbors j of a block lie within `span` positions.
    """

    neighborhood: Neighborhood
    rows: int
    columns: int
    heads: int

    @classmethod
    def of(cls, values: Tensor, heads: int, neighborhood: Neighborhood) -> Strip:
        """Choose a strip of values (B, Y, X, C) that fits the cache, at least as high as a neighborhood."""
        _, height, width, channels = values.shape
        rows = max(NUMBERS // (width * channels), neighborhood.reach + 1)
        return cls(neighborhood, min(rows, height), width, heads)

    def steps(self, height: int) -> Iterator[slice]:
        """Yield the rows of an image, strip by strip."""
        for start in range(0, height, self.rows):
            yield slice(start, start + self.rows)

    @property
    def wide(self) -> int:
        """Number of positions in one row of one head, zeros included."""
        return self.columns + self.neighborhood.reach

    @property
    def line(self) -> int:
        """Number of positions in one row of all heads."""
        return self.heads * self.wide

    @property
    def blocks(self) -> int:
        """Number of blocks that cover all positions; the last one may be partial."""
        return -(-self.rows * self.line // BLOCK)

    @property
    def span(self) -> int:
        """Number of positions that contain all neighbors of a block in one row."""
        return BLOCK + self.neighborhood.reach

    @property
    def padded_rows(self) -> int:
        """Number of rows, including the rows of neighbors above and below."""
        return self.rows + self.neighborhood.reach


class PaddedValues:
    """Memory for the values of a strip, with zeros around them."""

    def __init__(self, strip: Strip, like: Tensor) -> None:
        self._strip, self._width = strip, like.shape[-1] // strip.heads
        positions = strip.padded_rows * strip.line
        # the last block may extend beyond the last position
        self._values = like.new_zeros(positions + BLOCK + strip.span, self._width)
        lines = self._values[:positions].view(strip.padded_rows, strip.heads, strip.wide, -1)
        radius = strip.neighborhood.radius
        self._inside = lines[:, :, radius : radius + strip.columns].transpose(1, 2)

    def fill(self, image: Tensor, start: int) -> None:
        """Copy the strip's rows of an image (Y, X, C), from row `start` on, and the rows above and below."""
        radius, rows = self._strip.neighborhood.radius, self._strip.padded_rows
        first, last = max(start - radius, 0), min(start - radius + rows, len(image))
        above, below = first - (start - radius), last - (start - radius)
        self._inside[:above].zero_()
        self._inside[below:].zero_()
        self._inside[above:below].copy_(image[first:last].unflatten(-1, (self._strip.heads, self._width)))

    def neighbors(self, row: int) -> Tensor:
        """Return all neighbors in one row of the neighborhood: (blocks, S, D)."""
        strip = self._strip
        return self._blocks(row * strip.neighborhood.dilation * strip.line, strip.span)

    def centers(self) -> Tensor:
        """Return the blocks' own positions: (blocks, T, D)."""
        radius = self._strip.neighborhood.radius
        return self._blocks(radius * self._strip.line + radius, BLOCK)

    def _blocks(self, start: int, count: int) -> Tensor:
        width = self._width
        return self._values.as_strided((self._strip.blocks, count, width), (BLOCK * width, width, 1), start * width)


class Band:
    """Memory for the weights of a strip in one row of the neighborhood, and for weighted sums over neighbors."""

    def __init__(self, strip: Strip, like: Tensor) -> None:
        self._strip, size, length = strip, strip.neighborhood.size, strip.span + 1
        self._sums = like.new_empty(strip.blocks, BLOCK, like.shape[-1] // strip.heads)
        weights = like.new_zeros(strip.blocks * BLOCK, length)
        self._inside = weights.as_strided(
            (strip.rows, strip.heads, strip.columns, size),
            (strip.line * length, strip.wide * length, length, strip.neighborhood.dilation),
        )
        self._matrix = weights.as_strided((strip.blocks, BLOCK, strip.span), (BLOCK * length, strip.span, 1))

    def sums(self, weights: Tensor, padded: PaddedValues, out: Tensor) -> None:
        """Write the weighted sum of the neighbors of every position to `out`.

        Args:
            weights: (k, rows, H, X, k). Fewer rows than in the strip are allowed; sums of the missing rows are not
                written.
            out: (rows, X, C).
        """
        strip, count = self._strip, len(out)
        for row in range(strip.neighborhood.size):
            self._inside[:count].copy_(weights[row])
            # beta=0 ignores the old contents
            self._sums.baddbmm_(self._matrix, padded.neighbors(row), beta=1 if row else 0)
        positions = self._sums.view(-1, self._sums.shape[-1])[: strip.rows * strip.line]
        lines = positions.view(strip.rows, strip.heads, strip.wide, -1)[:count, :, : strip.columns]
        out.unflatten(-1, (strip.heads, -1)).copy_(lines.transpose(1, 2))


class Products:
    """Memory for the products of every position with its neighbors: the gradients of weights."""

    def __init__(self, strip: Strip, like: Tensor) -> None:
        self._strip, size = strip, strip.neighborhood.size
        self._matrix = like.new_empty(strip.blocks, BLOCK, strip.span)
        self._band = self._matrix.as_strided(
            (strip.blocks, BLOCK, size), (self._matrix.stride(0), strip.span + 1, strip.neighborhood.dilation)
        )
        self._products = like.new_empty(strip.blocks * BLOCK, strip.neighborhood.offsets)

    def of(self, centers: PaddedValues, neighbors: PaddedValues, rows: int) -> Tensor:
        """Return (rows, X, H, K), a view that the next call overwrites."""
        strip, size = self._strip, self._strip.neighborhood.size
        products = self._products.view(strip.blocks, BLOCK, size, size)
        middle = centers.centers()
        for row in range(size):
            torch.bmm(middle, neighbors.neighbors(row).transpose(1, 2), out=self._matrix)
            products[:, :, row].copy_(self._band)
        lines = self._products[: strip.rows * strip.line].view(strip.rows, strip.heads, strip.wide, -1)
        return lines[:rows, :, : strip.columns].transpose(1, 2)


class Mirrored:
    """An image's weights with zeros around them, indexed by neighbor.

    Pixel i contributes to pixel i + o with the weight of i at offset o, so pixel j receives from pixel j - o with the
    weight of j - o at offset o. With weights in this layout, the gradient of the values is the same sum over neighbors as
    the forward.
    """

    def __init__(self, strip: Strip, like: Tensor, rows: int) -> None:
        self._strip, near = strip, strip.neighborhood
        padded = like.new_zeros(rows + near.reach, strip.columns + near.reach, strip.heads, near.offsets)
        inside = slice(near.radius, near.radius + rows), slice(near.radius, near.radius + strip.columns)
        self.weights = padded[inside]  #: (Y, X, H, K), to be filled
        line, pixel, head, _ = padded.stride()
        self._mirrored = padded.as_strided(
            (near.size, rows, strip.heads, strip.columns, near.size),
            (near.dilation * line - near.size, line, head, pixel, near.dilation * pixel - 1),
            near.offsets - 1,
        )

    def rows(self, start: int, rows: int) -> Tensor:
        """Return the weights (k, rows, H, X, k) of the rows from `start` on, as required by `Band.sums`."""
        return self._mirrored[:, start : start + rows]
