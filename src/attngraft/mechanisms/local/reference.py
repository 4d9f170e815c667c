"""The equation of local attention, spelled out; every faster path is tested against it.

Letters: B images, C channels, Y x X pixels, H heads, K = k * k offsets, row by row; Y' x X' output pixels, equal to Y x X
without a stride.

    out_i[c] = sum_o (multiplier[c, o] * weights_i[h(c), o] + addend[c, o]) v_(s i + d o)[c]

with stride s, dilation d, o from -(k // 2) to k // 2 in both directions, v = 0 outside of the map, and h(c) the head whose
contiguous block of channels contains c. The softmax includes offsets outside the map, whose values are zero.

Source: ELSA, Eq. 5 and 8; the channels of a head follow the published code, where the text has c mod H.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.mechanisms.local.geometry import Neighborhood


def local_filter(
    values: Tensor,
    filters: Tensor,
    multiplier: Tensor | None,
    addend: Tensor | None,
    *,
    neighborhood: Neighborhood,
    softmax: bool,
) -> Tensor:
    """Apply filters (B, H K, Y', X') to values (B, C, Y, X), with ghosts (C, k, k), to (B, C, Y', X')."""
    offsets, channels = neighborhood.offsets, values.shape[1]
    batch, maps, rows, columns = filters.shape
    heads = maps // offsets
    weights = filters.to(values.dtype).view(batch, heads, 1, offsets, rows, columns)
    if softmax:
        weights = torch.softmax(weights, 3)
    for ghost, join in ((multiplier, torch.mul), (addend, torch.add)):
        if ghost is not None:
            weights = join(weights, ghost.to(values.dtype).reshape(heads, channels // heads, offsets, 1, 1))
    out = (weights * windows(values, neighborhood, rows, columns).unflatten(1, (heads, -1))).sum(3)
    return out.flatten(1, 2)


def local_scores(queries: Tensor, keys: Tensor, *, heads: int, neighborhood: Neighborhood) -> Tensor:
    """Compute q_i . k_(i + d o) for every head and offset, (B, C, Y, X) to (B, H K, Y, X); k is zero outside the map."""
    near = windows(keys, neighborhood, *keys.shape[2:]).unflatten(1, (heads, -1))  # (B, H, D, K, Y, X)
    return (queries.unflatten(1, (heads, -1)).unsqueeze(3) * near).sum(2).flatten(1, 2)


def windows(values: Tensor, neighborhood: Neighborhood, rows: int, columns: int) -> Tensor:
    """Return every pixel's neighborhood: (B, C, Y, X) to (B, C, K, Y', X')."""
    size, dilation, stride = neighborhood.size, neighborhood.dilation, neighborhood.stride
    unfolded = F.unfold(values, size, dilation=dilation, padding=neighborhood.radius, stride=stride)
    whole = [-(-count // stride) for count in values.shape[2:]]
    return unfolded.view(*values.shape[:2], neighborhood.offsets, *whole)[..., :rows, :columns]
