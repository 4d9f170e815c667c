"""Small images one under another, as one tall image: an operation costs as much for a small image as for a larger one.

Below each image lie rows of zeros, which its own pixels and those of the next one see beyond their borders.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attngraft.mechanisms.local.offsets import Neighborhood

#: numbers in the values of a stack, at most: where single images have as many, nothing is to be won
NUMBERS = 2**16


@dataclass(frozen=True)
class Stack:
    """How the images of a batch are put together."""

    batch: int
    height: int  #: rows of an image
    gap: int  #: rows of zeros below each
    count: int  #: images in a stack; the last stack may hold images of zeros

    @classmethod
    def of(cls, values: Tensor, heads: int, neighborhood: Neighborhood, *, apart: int) -> Stack:
        """Of values (B, Y, X, C). Images lie so many places (offsets.Strip) further apart than their neighborhoods reach."""
        batch, height, columns, channels = values.shape
        gap = neighborhood.radius + -(-apart // (heads * (columns + neighborhood.reach)))
        most = NUMBERS // ((height + gap) * columns * channels) if neighborhood.stride == 1 else 1
        stacks = -(-batch // max(most, 1))
        return cls(batch, height, gap, -(-batch // stacks))

    def up(self, maps: Tensor) -> Tensor:
        """(B, Y, X, N) as (stacks, rows, X, N)."""
        if self.count == 1:
            return maps
        stacks = -(-self.batch // self.count)
        room = maps.new_zeros(stacks * self.count, self.height + self.gap, *maps.shape[2:])
        room[: self.batch, : self.height].copy_(maps)
        return room.view(stacks, -1, *maps.shape[2:])

    def down(self, maps: Tensor) -> Tensor:
        """(stacks, rows, X, N) as (B, Y, X, N), contiguous."""
        if self.count == 1:
            return maps
        single = maps.view(-1, self.height + self.gap, *maps.shape[2:])
        return single[: self.batch, : self.height].contiguous()
