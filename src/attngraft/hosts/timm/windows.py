"""Window attention: masks, padded windows, and blocks that merge the windows."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from timm.models.swin_transformer import window_partition, window_reverse
from torch import Tensor

from attngraft.attention import GraftedModule, HookPoint, LinearLayer, Projected, SpaceSite, record_coordinates
from attngraft.hosts.patched import as_linear
from attngraft.hosts.timm.attention import PlainMerge, SelfAttention, split_qkv


def pad_to_windows(maps: Tensor, window: tuple[int, int]) -> Tensor:
    """Zero-pad maps (B, rows, columns, C) to whole windows."""
    rows, columns = (-side % each for side, each in zip(maps.shape[1:3], window, strict=True))
    return F.pad(maps, (0, 0, 0, columns, 0, rows))


def partition(maps: Tensor, window: tuple[int, int]) -> Tensor:
    """Partition maps of whole windows (B, rows, columns, C) into windows (B * windows, N, C)."""
    return cast(Tensor, window_partition(maps, window).flatten(1, 2))


def merge_windows(windows: Tensor, window: tuple[int, int], grid: tuple[int, ...]) -> Tensor:
    """Merge windows (B * windows, N, C) into maps of size `grid`; the inverse of `pad_to_windows` and `partition`."""
    padded = (side + -side % each for side, each in zip(grid, window, strict=True))
    maps = window_reverse(windows.unflatten(1, window), window, *padded)
    return cast(Tensor, maps[:, : grid[0], : grid[1]])


def present_tokens(x: Tensor, window: tuple[int, int], grid: tuple[int, ...]) -> Tensor | None:
    """Return a mask (windows of one image, N), False for window padding, on the device of `x`; None: no padding."""
    if not any(side % each for side, each in zip(grid, window, strict=True)):
        return None
    return partition(pad_to_windows(x.new_ones(1, *grid, 1), window), window).squeeze(-1) > 0


class WindowState(NamedTuple):
    """Inputs of the scores of window attention besides q, k and bias."""

    mask: Tensor | None  #: (windows of an image, N, N), added to the scores; None without shift
    direction: Tensor | None = None  #: normalized queries (B, H, N, d), if a temperature multiplies the scores


class WindowSite(PlainMerge):
    """Attention in shifted windows, as in Swin; B is the number of windows of all images, image by image.

    Subclasses define `position_bias`. They override `split` if `qkv` does not return q, k and v, and `products` if the
    products have a factor other than `scale`.
    """

    ends: tuple[HookPoint, ...] = ("attn.window",)
    may_hide_all: ClassVar[bool] = False

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return q, k, v, (B, H, N, d) each."""
        return split_qkv(self.qkv(x), self.num_heads)

    def position_bias(self) -> Tensor:
        """Return the position bias (1, H, N, N)."""
        raise TypeError(f"{type(self).__name__} does not define position_bias")

    def project(self, x: Tensor, mask: Tensor | None = None, present: Tensor | None = None) -> Projected:
        q, k, v = self.split(x)
        return Projected(q, k, v, x, bias=self.position_bias(), rest=WindowState(mask), present=present)

    def products(self, projected: Projected) -> Tensor:
        """Return the scores (B, H, N, N) before bias and mask."""
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
        # add an axis for the windows of an image, because all images share their masks
        by_image = scores.view(-1, mask.shape[0], *scores.shape[1:]) + mask.unsqueeze(1).unsqueeze(0)
        return by_image.view(scores.shape)

    def visible(self, projected: Projected) -> Tensor | None:
        mask = projected.rest.mask
        if mask is None:
            return None
        images = projected.q.shape[0] // mask.shape[0]
        return cast(Tensor, (mask == 0).unsqueeze(1).repeat(images, 1, 1, 1))


class CosineWindowSite(WindowSite):
    """Window attention with cosine scores times a learned temperature per head (at most 100); no fused kernel."""

    scale = 1.0
    fused_attn = False
    logit_scale: Tensor

    def temperature(self) -> Tensor:
        """Return the temperature (H, 1, 1)."""
        return self.logit_scale.view(-1, 1, 1).clamp(max=torch.log(torch.tensor(100.0)).item()).exp()

    def project(self, x: Tensor, mask: Tensor | None = None, present: Tensor | None = None) -> Projected:
        q, k, v = self.split(x)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        rest = WindowState(mask, direction=q)
        return Projected(q * self.temperature(), k, v, x, bias=self.position_bias(), rest=rest, present=present)

    def products(self, projected: Projected) -> Tensor:
        return cast(Tensor, projected.rest.direction @ projected.k.transpose(-2, -1)) * self.temperature()


class WindowAxisSite(SelfAttention):
    """Attention whose kernel has a separate axis for windows; `rest` is the number of windows per image."""

    ends: tuple[HookPoint, ...] = ("attn.window",)

    def kernel(self, projected: Projected) -> Tensor:
        """Run the kernel with a windows axis, as the host does; other layouts round differently."""
        q, k, v = (each.unflatten(0, (-1, projected.rest)) for each in projected[:3])
        return super().kernel(projected.replace(q=q, k=k, v=v)).flatten(0, 1)


class WindowMerger(GraftedModule):
    """A block that merges the windows of its attention, and therefore has the hook point `attn.end`."""

    attn: Any

    def between(self, hook_point: HookPoint) -> str | None:
        grafted = hook_point == "attn.end" and isinstance(self.attn, SelfAttention)  # an unpatched module has no grafts
        return self.attn.between(hook_point) if grafted else None

    def linear_before(self, hook_point: HookPoint) -> LinearLayer | None:
        if hook_point != "attn.end" or self.between(hook_point):
            return None
        module = self.attn
        return module.linear_before(hook_point) if isinstance(module, SelfAttention) else as_linear(module.proj)


class PaddedWindows(WindowMerger):
    """A block that pads windows, and passes the padding mask to its attention if the attention has a mix graft."""

    @property
    def in_use(self) -> bool:
        return super().in_use or self.mixes

    @property
    def mixes(self) -> bool:
        """Whether the attention has a mix graft."""
        return isinstance(self.attn, SelfAttention) and bool(self.attn.grafts_at("mix"))


class FixedWindowBlock(PaddedWindows):
    """A block with windows that do not shift, on maps (B, rows, columns, C)."""

    def branch(self, x: Tensor, window: tuple[int, int]) -> Tensor:
        """Apply the attention to the windows of a map."""
        grid = x.shape[1:3]
        record_coordinates(self, x, lambda maps: partition(pad_to_windows(maps, window), window))
        present = present_tokens(x, window, grid) if self.mixes else None
        windows = partition(pad_to_windows(x, window), window)
        windows = self.attn(windows) if present is None else self.attn(windows, present)
        return self.run("attn.end", merge_windows(windows, window, grid))


class ShiftedWindowBlock(SpaceSite, PaddedWindows):
    """A block with shifted windows, on maps (B, rows, columns, C)."""

    detaches: ClassVar = ("attn",)

    window_size: tuple[int, int]
    shift_size: tuple[int, int]
    attn_mask: Tensor | None

    def branch(self, x: Tensor, plain: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply the attention to the windows of a map; `plain` is the host's method."""
        out = self.stand_in(x)
        if out is None:
            record_coordinates(self, x, lambda maps: partition(self._shifted(maps), self.window_size))
            present = present_tokens(x, self.window_size, x.shape[1:3]) if self.mixes else None
            out = plain(x) if present is None else self._padded(x, present)
        return self.run("attn.end", out)

    def _padded(self, x: Tensor, present: Tensor) -> Tensor:
        """Reimplement the host's method, passing `present` to the attention."""
        grid, x = x.shape[1:3], self._shifted(x)
        mask = super().get_attn_mask(x) if getattr(self, "dynamic_mask", False) else self.attn_mask  # type: ignore[misc]
        windows = self.attn(partition(x, self.window_size), mask=mask, present=present)
        return torch.roll(merge_windows(windows, self.window_size, grid), list(self.shift_size), (1, 2))

    def _shifted(self, maps: Tensor) -> Tensor:
        """Shift and pad the maps, as the host does before partitioning."""
        return pad_to_windows(torch.roll(maps, [-shift for shift in self.shift_size], (1, 2)), self.window_size)
