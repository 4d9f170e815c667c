"""Attention in shifted windows, as timm's three Swin families have it: masks, tokens that fill up, blocks that put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from timm.models.swin_transformer import window_partition, window_reverse
from torch import Tensor, nn

from attngraft.attention import GraftedModule, HookPoint, LinearLayer, Projected, SpaceSite, record_coordinates
from attngraft.hosts.timm.attention import SelfAttention, by_role


def fill(maps: Tensor, window: tuple[int, int]) -> Tensor:
    """Maps (B, rows, columns, C), with zeros that fill up the last windows."""
    rows, columns = (-side % each for side, each in zip(maps.shape[1:3], window, strict=True))
    return F.pad(maps, (0, 0, 0, columns, 0, rows))


def cut(maps: Tensor, window: tuple[int, int]) -> Tensor:
    """Maps that need no filling to the tokens of their windows (B * windows, N, C)."""
    return cast(Tensor, window_partition(maps, window).flatten(1, 2))


def put_back(windows: Tensor, window: tuple[int, int], grid: tuple[int, ...]) -> Tensor:
    """What `fill` and `cut` made of maps of this size to the maps."""
    filled = (side + -side % each for side, each in zip(grid, window, strict=True))
    maps = window_reverse(windows.unflatten(1, window), window, *filled)
    return cast(Tensor, maps[:, : grid[0], : grid[1]])


def present_tokens(x: Tensor, window: tuple[int, int], grid: tuple[int, ...]) -> Tensor | None:
    """Which tokens of an image's windows (windows, N) are no zeros that fill up, on the device of `x`; None: all."""
    if not any(side % each for side, each in zip(grid, window, strict=True)):
        return None
    return cut(fill(x.new_ones(1, *grid, 1), window), window).squeeze(-1) > 0


class Windowed(NamedTuple):
    """What `merge` and the scores of a windowed attention need besides q, k and v."""

    mask: Tensor | None  #: (windows of an image, N, N), added to the scores; None where nothing is shifted
    direction: Tensor | None = None  #: (B, H, N, d), queries of length one, where a temperature follows the product


class WindowSite(SelfAttention):
    """B counts windows, those of one image side by side. An adapter supplies `position_bias`; `split`, where q, k and
    v are not what `qkv` gives; and `products`, where the product of queries and keys has a factor other than `scale`."""

    ends: tuple[HookPoint, ...] = ("attn.window",)
    num_heads: int
    qkv: nn.Module

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v, (B, H, N, d) each."""
        return by_role(self.qkv(x), self.num_heads)

    def position_bias(self) -> Tensor:
        """(1, H, N, N)."""
        raise TypeError(f"{type(self).__name__} does not say which bias its positions have")

    def project(self, x: Tensor, mask: Tensor | None = None, present: Tensor | None = None) -> Projected:
        q, k, v = self.split(x)
        return Projected(q, k, v, x, bias=self.position_bias(), rest=Windowed(mask), present=present)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return super().merge(heads, projected._replace(rest=None))

    def products(self, projected: Projected) -> Tensor:
        """(B, H, N, N), before bias and mask."""
        return (projected.q * self.scale) @ projected.k.transpose(-2, -1)

    def fused_bias(self, projected: Projected) -> Tensor | None:
        bias, mask = cast(Tensor, projected.bias), projected.rest.mask
        if mask is None:
            return bias
        windows, tokens = mask.shape[0], mask.shape[-1]
        images = projected.q.shape[0] // windows
        mask = mask.view(1, windows, 1, tokens, tokens).expand(images, -1, self.num_heads, -1, -1)
        return bias + mask.reshape(-1, self.num_heads, tokens, tokens)

    def shared_bias(self, projected: Projected) -> Tensor:
        bias, mask = cast(Tensor, projected.bias), projected.rest.mask
        return bias if mask is None else bias + mask.unsqueeze(1)

    def scores(self, projected: Projected) -> Tensor:
        scores = self.products(projected) + cast(Tensor, projected.bias)
        mask = projected.rest.mask
        if mask is None:
            return scores
        # one axis for the windows of an image, which share their mask with those of every other image
        by_image = scores.view(-1, mask.shape[0], *scores.shape[1:]) + mask.unsqueeze(1).unsqueeze(0)
        return by_image.view(scores.shape)

    def visible(self, projected: Projected) -> Tensor | None:
        mask = projected.rest.mask
        if mask is None:
            return None
        images = projected.q.shape[0] // mask.shape[0]
        return cast(Tensor, (mask == 0).unsqueeze(1).repeat(images, 1, 1, 1))


class CosineWindowSite(WindowSite):
    """Scores are cosines times a learned temperature per head, at most 100; there is no fused kernel for that."""

    scale = 1.0
    fused_attn = False
    logit_scale: Tensor

    def temperature(self) -> Tensor:
        """(H, 1, 1)."""
        return self.logit_scale.view(-1, 1, 1).clamp(max=torch.log(torch.tensor(100.0)).item()).exp()

    def project(self, x: Tensor, mask: Tensor | None = None, present: Tensor | None = None) -> Projected:
        q, k, v = self.split(x)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        rest = Windowed(mask, direction=q)
        return Projected(q * self.temperature(), k, v, x, bias=self.position_bias(), rest=rest, present=present)

    def products(self, projected: Projected) -> Tensor:
        return cast(Tensor, projected.rest.direction @ projected.k.transpose(-2, -1)) * self.temperature()


class WindowEnd(GraftedModule):
    """A block that puts its attention's windows back: there, on the whole map, the branch ends."""

    attn: Any

    def between(self, hook_point: HookPoint) -> str | None:
        module = self.attn
        if hook_point != "attn.end" or not isinstance(module, SelfAttention):  # a plain one has no grafts
            return None
        if module.grafts_at("attn.window"):
            return "another graft lies between it and the host's output projection"
        return module.between("attn.window")

    def linear_before(self, hook_point: HookPoint) -> LinearLayer | None:
        module = self.attn
        if hook_point != "attn.end" or self.between(hook_point):
            return None
        if isinstance(module, SelfAttention):
            return module.linear_before("attn.window")
        return module.proj if isinstance(module.proj, nn.Linear | nn.Conv2d) else None


class FilledWindows(WindowEnd):
    """It alone knows which tokens are zeros that fill up a window, and tells the mix graft of its attention."""

    @property
    def in_use(self) -> bool:
        return super().in_use or self.mixes

    @property
    def mixes(self) -> bool:
        """Whether there is such a graft."""
        return isinstance(self.attn, SelfAttention) and bool(self.attn.grafts_at("mix"))


class WindowBlock(SpaceSite, FilledWindows):
    """The maps are (B, H, W, C), and the windows shift."""

    detaches: ClassVar = ("attn",)

    window_size: tuple[int, int]
    shift_size: tuple[int, int]
    attn_mask: Tensor | None

    def branch(self, x: Tensor, plain: Callable[[Tensor], Tensor]) -> Tensor:
        """(B, H, W, C) through the attention of windows; `plain` is the host's own method that does it."""
        found = self.stand_in(x)
        if found is None:
            record_coordinates(self, x, lambda maps: cut(self._shifted(maps), self.window_size))
            seen = present_tokens(x, self.window_size, x.shape[1:3]) if self.mixes else None
            found = plain(x) if seen is None else self._filled(x, seen)
        return self.run("attn.end", found)

    def _filled(self, x: Tensor, seen: Tensor) -> Tensor:
        """The host's own way, with one argument more to its attention."""
        grid, x = x.shape[1:3], self._shifted(x)
        mask = super().get_attn_mask(x) if getattr(self, "dynamic_mask", False) else self.attn_mask  # type: ignore[misc]
        windows = self.attn(cut(x, self.window_size), mask=mask, present=seen)
        return torch.roll(put_back(windows, self.window_size, grid), list(self.shift_size), (1, 2))

    def _shifted(self, maps: Tensor) -> Tensor:
        """The maps as they are cut: shifted, then filled up."""
        return fill(torch.roll(maps, [-shift for shift in self.shift_size], (1, 2)), self.window_size)
