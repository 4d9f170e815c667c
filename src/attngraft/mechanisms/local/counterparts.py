"""Layers to which the paper compares ELSA: filters of maps (B, Y, X, dim), independent of pairs of pixels.

    out = W_out sum over o of f[c, o] (W_in x)_(i + o)[c]

| layer | f, of channel c and offset o, at pixel i |
|---|---|
| `DepthwiseConvolution` | w[head of c, o], the same at all pixels |
| `DynamicConvolution` | computed from the image's mean |
| `DecoupledFilter` | computed from the pixel, times a filter computed from the image's mean |

Involution and window attention are special cases of `unified.LocalAttention`; outlook attention comes from timm.

Source: ELSA, Table 5 and Figure 2, which name the layers after their own papers.
"""

import functools
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.attention.recorder import Recordable
from attngraft.dispatch.autograd import is_exporting
from attngraft.errors import UsageError
from attngraft.mechanisms.local.geometry import Neighborhood
from attngraft.mechanisms.local.ops import local_filter


class _Filtered(Recordable, ABC, nn.Module):
    """Base class: linear map, filters, linear map. Records `local_filters`, the filters that are applied."""

    def __init__(self, dim: int, *, kernel_size: int) -> None:
        super().__init__()
        self.neighborhood = Neighborhood(kernel_size)
        self.proj_in = nn.Linear(dim, dim)
        self.proj_out = nn.Linear(dim, dim)

    @abstractmethod
    def filtered(self, values: Tensor, x: Tensor) -> Tensor:
        """Filter the values (B, dim, Y, X) of the map x (B, Y, X, dim)."""

    def forward(self, x: Tensor) -> Tensor:
        """Filter a map (B, Y, X, dim)."""
        values = self.proj_in(x).permute(0, 3, 1, 2)
        return self.proj_out(self.filtered(values, x).permute(0, 2, 3, 1))

    def extra_repr(self) -> str:
        return f"kernel_size={self.neighborhood.size}"


class DepthwiseConvolution(_Filtered):
    """One static filter per head.

    Args:
        heads: number of contiguous blocks of channels that share a filter; by default `dim`, a depthwise convolution.

    Records `local_filters` (heads, K). `filters` (heads, k, k) are initialized like a depthwise convolution in PyTorch:
    uniformly between -1 / k and 1 / k.

    Raises:
        UsageError: the kernel size is even, or `dim` is not divisible by the number of heads.
    """

    def __init__(self, dim: int, *, heads: int | None = None, kernel_size: int = 7) -> None:
        super().__init__(dim, kernel_size=kernel_size)
        self.heads = dim if heads is None else heads
        if self.heads < 1 or dim % self.heads:
            raise UsageError(f"the width {dim} is not divisible by {self.heads} heads; choose another number")
        self.filters = nn.Parameter(torch.empty(self.heads, kernel_size, kernel_size))
        nn.init.uniform_(self.filters, -1 / kernel_size, 1 / kernel_size)

    def filtered(self, values: Tensor, x: Tensor) -> Tensor:
        channels = values.shape[1]
        self.record("local_filters", self.filters.flatten(1))
        by_channel = self.filters.repeat_interleave(channels // self.heads, 0).unsqueeze(1)
        return F.conv2d(values, by_channel, padding=self.neighborhood.radius, groups=channels)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, {super().extra_repr()}"


class DynamicConvolution(_Filtered):
    """A filter per channel and image: two linear maps of the image's mean, a norm and ReLU between them.

    Records `local_filters` (B, dim, K). The paper does not name the norm; here it is a layer norm, which keeps the images of
    a batch independent. The layers are `squeeze` (width dim / reduction), `norm` and `expand` (width dim k k).
    """

    def __init__(self, dim: int, *, kernel_size: int = 7, reduction: int = 4) -> None:
        super().__init__(dim, kernel_size=kernel_size)
        hidden = max(1, dim // reduction)
        self.squeeze = nn.Linear(dim, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.expand = nn.Linear(hidden, dim * self.neighborhood.offsets)

    def filtered(self, values: Tensor, x: Tensor) -> Tensor:
        batch, channels, *_ = values.shape
        size = self.neighborhood.size
        filters = self.expand(self.norm(self.squeeze(x.mean((1, 2)))).relu()).view(batch * channels, 1, size, size)
        self.record("local_filters", filters.view(batch, channels, size**2))
        if is_exporting():  # an exported program cannot have as many groups as its batch
            return _by_offset(values, filters.view(batch, channels, size, size))
        joined = values.reshape(1, batch * channels, *values.shape[2:])  # channels of all images on one axis
        return F.conv2d(joined, filters, padding=self.neighborhood.radius, groups=batch * channels).view(values.shape)


class DecoupledFilter(_Filtered):
    """The product of a filter per pixel and a filter per channel and image, each after a filter norm.

        FN(spatial x_i)[o] * FN(expand(relu(squeeze(mean x))))[c, o],    FN(f) = scale (f - mean f) / (std f + 1e-5) + shift

    Mean and (biased) std are over the offsets. The scales, `spatial_scale` (1) and `channel_scale` (dim), start as
    ones; the shifts, `spatial_shift` (1) and `channel_shift` (dim), start as zeros. Records the two factors, `local_filters`
    (B, 1, K, Y, X) and `channel_filters` (B, dim, K). The paper only names the norm, followed by a
    learned scale and shift.
    """

    def __init__(self, dim: int, *, kernel_size: int = 7, squeeze: float = 0.2) -> None:
        super().__init__(dim, kernel_size=kernel_size)
        hidden = max(1, int(dim * squeeze))
        self.spatial = nn.Linear(dim, self.neighborhood.offsets)
        self.squeeze = nn.Linear(dim, hidden)
        self.expand = nn.Linear(hidden, dim * self.neighborhood.offsets)
        self.spatial_scale, self.spatial_shift = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))
        self.channel_scale, self.channel_shift = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def filtered(self, values: Tensor, x: Tensor) -> Tensor:
        channels, size = values.shape[1], self.neighborhood.size
        spatial = filter_norm(self.spatial(x)) * self.spatial_scale + self.spatial_shift  # (B, Y, X, K)
        filters = self.expand(self.squeeze(x.mean((1, 2))).relu()).unflatten(1, (channels, -1))
        scale, shift = self.channel_scale.unsqueeze(1), self.channel_shift.unsqueeze(1)
        by_channel = filter_norm(filters) * scale + shift  # (B, C, K)
        self.record("local_filters", spatial.permute(0, 3, 1, 2).unsqueeze(1))
        self.record("channel_filters", by_channel)
        # one image whose heads are the images of the batch: all channels of an image share the filters of its pixels
        out = local_filter(
            values.flatten(0, 1).unsqueeze(0),
            spatial.permute(0, 3, 1, 2).flatten(0, 1).unsqueeze(0),
            by_channel.flatten(0, 1).unflatten(1, (size, size)),
            kernel_size=size,
            softmax=False,
        )
        return out.view(values.shape)


def _by_offset(values: Tensor, filters: Tensor) -> Tensor:
    """Apply filters (B, C, k, k) to values (B, C, Y, X), one offset after another."""
    rows, columns = values.shape[2:]
    size = filters.shape[-1]
    padded = F.pad(values, (size // 2,) * 4)
    offsets = ((i, j) for i in range(size) for j in range(size))
    terms = (padded[..., i : i + rows, j : j + columns] * filters[..., i, j, None, None] for i, j in offsets)
    return functools.reduce(torch.add, terms)


def filter_norm(filters: Tensor) -> Tensor:
    """Normalize (..., K) to mean 0 and standard deviation 1 over the last axis."""
    centered = filters - filters.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True).sqrt() + 1e-5)
