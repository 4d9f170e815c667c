"""Weights of neighborhoods as the bands of matrices, so that the sums over neighbors are products of matrices.

For one row i of the neighborhood, the neighbors of a block of T places lie within S = T + reach places (offsets.Strip). Put
each place's weights on the band that starts at the diagonal of a T x S matrix, zeros elsewhere, and

    sum over i of band_i (T x S) @ values_i (S x D)        is what the block gets,
    the same band of gradient (T x D) @ values_i^T (D x S)  is the gradient of the weights.

A product multiplies S / k times more numbers than there are, and is many times faster than to touch every neighbor by
itself. Bands are written without a loop: rows of S + 1 numbers, weights first, are bands where they are read S at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attngraft.mechanisms.local.offsets import Strip


class Padded:
    """Room for the values of a strip, with zeros around them."""

    def __init__(self, strip: Strip, like: Tensor) -> None:
        self._strip, self._width = strip, like.shape[-1] // strip.heads
        self._places = like.new_zeros(strip.padded_places, self._width)
        lines = self._places[: strip.padded_rows * strip.line].view(strip.padded_rows, strip.heads, strip.wide, -1)
        radius = strip.neighborhood.radius
        self._inside = lines[:, :, radius : radius + strip.columns].transpose(1, 2)

    def fill(self, image: Tensor, start: int) -> None:
        """From an image (Y, X, C), the rows from `start` on and those that they need around them."""
        radius, rows = self._strip.neighborhood.radius, self._strip.padded_rows
        first, last = max(start - radius, 0), min(start - radius + rows, len(image))
        above, below = first - (start - radius), last - (start - radius)
        self._inside[:above].zero_()
        self._inside[below:].zero_()
        self._inside[above:below].copy_(image[first:last].unflatten(-1, (self._strip.heads, self._width)))

    def neighbors(self, row: int) -> Tensor:
        """The places of all neighbors in one row of the neighborhood: (blocks, S, D)."""
        strip = self._strip
        return self._windows(row * strip.neighborhood.dilation * strip.line, strip.span)

    def centers(self) -> Tensor:
        """The blocks' own places: (blocks, T, D)."""
        radius = self._strip.neighborhood.radius
        return self._windows(radius * self._strip.line + radius, self._strip.block)

    def _windows(self, start: int, count: int) -> Tensor:
        block, width = self._strip.block, self._width
        return self._places.as_strided((self._strip.blocks, count, width), (block * width, width, 1), start * width)


class Band:
    """Room for the weights of a strip in one row of the neighborhood, and for sums over neighbors by them."""

    def __init__(self, strip: Strip, like: Tensor) -> None:
        self._strip, size, place = strip, strip.neighborhood.size, strip.span + 1
        self._sums = like.new_empty(strip.blocks, strip.block, like.shape[-1] // strip.heads)
        weights = like.new_zeros(strip.blocks * strip.block, place)
        self._inside = weights.as_strided(
            (strip.rows, strip.heads, strip.columns, size),
            (strip.line * place, strip.wide * place, place, strip.neighborhood.dilation),
        )
        self._matrix = weights.as_strided((strip.blocks, strip.block, strip.span), (strip.block * place, strip.span, 1))

    def sums(self, weights: Tensor, padded: Padded, out: Tensor) -> None:
        """Weigh every place's neighbors.

        Args:
            weights: (k, rows, H, X, k). Where there are fewer rows than in the strip, the others' sums mean nothing.
            out: (rows, X, C).
        """
        strip, count = self._strip, len(out)
        for row in range(strip.neighborhood.size):
            self._inside[:count].copy_(weights[row])
            # beta 0 does not read what is there
            self._sums.baddbmm_(self._matrix, padded.neighbors(row), beta=1 if row else 0)
        places = self._sums.view(-1, self._sums.shape[-1])[: strip.rows * strip.line]
        lines = places.view(strip.rows, strip.heads, strip.wide, -1)[:count, :, : strip.columns]
        out.unflatten(-1, (strip.heads, -1)).copy_(lines.transpose(1, 2))


class Products:
    """Room for the products of every place with its neighbors: the gradients of weights."""

    def __init__(self, strip: Strip, like: Tensor) -> None:
        self._strip, size = strip, strip.neighborhood.size
        self._matrix = like.new_empty(strip.blocks, strip.block, strip.span)
        self._band = self._matrix.as_strided(
            (strip.blocks, strip.block, size),
            (self._matrix.stride(0), strip.span + 1, strip.neighborhood.dilation),
        )
        self._products = like.new_empty(strip.blocks * strip.block, strip.neighborhood.offsets)

    def of(self, centers: Padded, neighbors: Padded, rows: int) -> Tensor:
        """(rows, X, H, K), a view that the next call overwrites."""
        strip, size = self._strip, self._strip.neighborhood.size
        products = self._products.view(strip.blocks, strip.block, size, size)
        own = centers.centers()
        for row in range(size):
            torch.bmm(own, neighbors.neighbors(row).transpose(1, 2), out=self._matrix)
            products[:, :, row].copy_(self._band)
        lines = self._products[: strip.rows * strip.line].view(strip.rows, strip.heads, strip.wide, -1)
        return lines[:rows, :, : strip.columns].transpose(1, 2)


class Mirrored:
    """An image's weights with zeros around them, read from the side of the neighbors.

    Pixel i gives to its neighbor i + o by weight o; so what comes to a pixel from its own neighbor -o has that weight of the
    neighbor's. Read so, weights sum up gradients of outputs to those of values, as they sum up values to outputs.
    """

    def __init__(self, strip: Strip, like: Tensor, rows: int) -> None:
        self._strip, near = strip, strip.neighborhood
        self._room = like.new_zeros(rows + near.reach, strip.columns + near.reach, strip.heads, near.offsets)
        inside = slice(near.radius, near.radius + rows), slice(near.radius, near.radius + strip.columns)
        self.weights = self._room[inside]  #: (Y, X, H, K), to be filled
        line, pixel, head, _ = self._room.stride()
        self._seen = self._room.as_strided(
            (near.size, rows, strip.heads, strip.columns, near.size),
            (near.dilation * line - near.size, line, head, pixel, near.dilation * pixel - 1),
            near.offsets - 1,
        )

    def seen(self, start: int, rows: int) -> Tensor:
        """(k, rows, H, X, k) of the rows from `start` on, for `Band.sums`."""
        return self._seen[:, start : start + rows]
