"""Neighborhoods: their numbers, and how those around every pixel lie in memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Neighborhood:
    """A pixel's `size` x `size` neighbors, `dilation` apart; `stride` apart the pixels that have one."""

    size: int
    dilation: int = 1
    stride: int = 1

    @property
    def offsets(self) -> int:
        """K."""
        return self.size**2

    @property
    def radius(self) -> int:
        """How far neighbors lie from their pixel: rows, or columns, of zeros that a map needs around it."""
        return self.size // 2 * self.dilation

    @property
    def reach(self) -> int:
        """From the first neighbor of a row to the last."""
        return 2 * self.radius


@dataclass(frozen=True)
class Strip:
    """Rows of a map with the zeros around them, pixel after pixel, as one long sequence.

    A row of the map stands once per head, one head after another, so that pixel (y, h, x) has place p = (y H + h) wide + x,
    and its neighbor (i, j) lies at p + i d H wide + j d, the same way from every p. Places are taken `block` at a time: the
    neighbors j of a block lie within `span` places.
    """

    neighborhood: Neighborhood
    rows: int
    columns: int
    heads: int
    block: int

    @property
    def wide(self) -> int:
        """Places of a row and a head, zeros included."""
        return self.columns + self.neighborhood.reach

    @property
    def line(self) -> int:
        """Places of a row, all heads."""
        return self.heads * self.wide

    @property
    def blocks(self) -> int:
        """How many blocks hold all places; the last one may reach beyond."""
        return -(-self.rows * self.line // self.block)

    @property
    def span(self) -> int:
        """Places in which the neighbors in one row of a block lie."""
        return self.block + self.neighborhood.reach

    @property
    def padded_rows(self) -> int:
        """Rows with those above and below that neighbors lie in."""
        return self.rows + self.neighborhood.reach

    @property
    def padded_places(self) -> int:
        """Places of the padded rows, and of what the last block reaches beyond them."""
        return self.padded_rows * self.line + self.block + self.span
