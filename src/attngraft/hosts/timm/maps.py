"""Hosts that keep their tokens as maps: grafts see tokens all the same, and nothing is copied on the way."""

from __future__ import annotations

from typing import cast

import torch
from timm.layers import ConvMlp
from torch import Tensor

from attngraft.attention import HookPoint, MlpSite
from attngraft.hosts.linear_ends import LinearEnds


def tokens_of(x: Tensor) -> Tensor:
    """A map (B, C, rows, columns) as tokens (B, N, C), which share its memory."""
    return x.flatten(2).transpose(1, 2)


def map_of(x: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Tokens as a map; of what `tokens_of` gave, the map that it was."""
    return x.transpose(1, 2).unflatten(2, grid)


def in_order_of(x: Tensor, like: Tensor) -> Tensor:
    """The map `x` with its axes in memory as those of the map `like`.

    A graft puts out tokens one after the other, a map with channels last. A convolution would take another way through
    such a map, which rounds otherwise, and the host's next ones after it.
    """
    channels_last = like.is_contiguous(memory_format=torch.channels_last) and not like.is_contiguous()
    return x.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


class MapMlpSite(MlpSite):
    """An MLP that is given maps (B, C, rows, columns), or tokens."""

    @property
    def takes_maps(self) -> bool:
        """Whether four axes are those of a map; otherwise channels come last."""
        return True

    def run(self, hook_point: HookPoint, value: Tensor, *context: Tensor | None) -> Tensor:
        if value.ndim == 3 or not self.takes_maps:
            return super().run(hook_point, value, *context)
        # axes first, sizes then: where `tokens_of` joins axes of a batch of one, that axis gets a stride by which nobody
        # knows a map with channels last as such any more
        tokens = super().run(hook_point, value.permute(0, 2, 3, 1).flatten(1, 2), *context)
        return tokens.unflatten(1, value.shape[-2:]).permute(0, 3, 1, 2)


class GraftedConvMlp(LinearEnds, MapMlpSite, ConvMlp):
    """`timm.layers.ConvMlp`: fc1, optional norm, activation, dropout, fc2, as convolutions of one pixel."""

    def hidden(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop(self.act(self.norm(self.fc1(x)))))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc2(x))
