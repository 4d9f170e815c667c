"""Hadamard attention: a pixel's filters from the element-wise product of its query and key, without scores of pairs.

    p = scale q * k                                      (Y, X, dq), element by element
    filters = conv1x1(GELU(conv_kxk(p)))                 H K maps; the final form, as published
    filters_i[h, o] = p_i . rk[h, o] + p_(i + o) . rq[h, o] + rb[h, o]      the strict form, Eq. 7
    out = post_proj(local_filter(v, filters, ghost head))

The final form swaps the two steps of the strict one and puts a GELU between them: the grouped convolution combines every
pixel's product with those of its neighbors, and the 1 x 1 convolution computes the filters. All released models use it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.attention.recorder import Recordable
from attngraft.errors import UsageError
from attngraft.mechanisms.local.geometry import Neighborhood
from attngraft.mechanisms.local.ops import local_filter
from attngraft.mechanisms.local.shifted import read_at_neighbors


class HadamardAttention(Recordable, nn.Module):
    """Attention on a map (B, Y, X, dim), from every pixel to its neighborhood.

    Args:
        dim: channels.
        heads: H; each has its own filters, and `dim_v` / H channels of the values.
        kernel_size: k, odd.
        dilation: dilation of the neighborhood, and of the convolution that computes the filters.
        dim_qk: channels of queries and keys; two thirds of `dim` by default. Rounded up to a multiple of
            `group_width`, except in the strict form.
        dim_v: channels of the values; `dim` by default.
        group_width: channels in a group of the k x k convolution.
        groups: groups of the 1 x 1 convolution that outputs the filters.
        scale: factor of the products; the published blocks use 1, the default of the published module is
            (dim_v / H)^-0.5.
        lam, gamma: exponent of the ghost head's multiplier and factor of its addend; 0 omits that part. All published
            models have lam 0 and gamma 1. The multiplier starts with entries of both signs, so lam must be an integer.
        strict: use the strict form instead of the final one; it has no convolutions, so `group_width` and `groups` are
            ignored.
        attn_drop: dropout probability of the filters after softmax, before the ghost head.
        proj_drop: dropout probability after the output projection.

    Parameters have the names of the published checkpoints: `pre_proj` (rows: queries, keys, values), `attn.0` and `attn.2`
    (`attn.rq`, `attn.rk`, `attn.rb` in the strict form), `ghost_head` (2, 1, dim_v, k, k) with multiplier and addend or
    (1, dim_v, k, k) with one of them, and `post_proj`.

    For channel c, the ghost head reads the filters of head c // (dim_v / H), as the published code does; Eq. 8 has c mod H.
    The two differ only in the order of the channels.

    Records `local_filters` (B, H, K, Y, X), after softmax, and `ghost_mul` and `ghost_add` (dim_v, k, k) as they are
    applied.

    Raises:
        UsageError: `dim_v` is not divisible by H, the kernel size is even, or `lam` is fractional.

    Source: ELSA, sections 3.2 to 3.4, Eq. 7 and 8, Algorithm 2; Figure 3 for the final form.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kernel_size: int = 7,
        dilation: int = 1,
        dim_qk: int | None = None,
        dim_v: int | None = None,
        qkv_bias: bool = True,
        scale: float = 1.0,
        group_width: int = 8,
        groups: int = 1,
        lam: float = 0,
        gamma: float = 1,
        strict: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.neighborhood = Neighborhood(kernel_size, dilation)
        dim_v = dim if dim_v is None else dim_v
        dim_qk = dim // 3 * 2 if dim_qk is None else dim_qk
        if not strict:
            dim_qk = -(-dim_qk // group_width) * group_width
        if heads < 1 or dim_v % heads:
            raise UsageError(
                f"the {dim_v} channels of the values are not divisible by {heads} heads; choose another number of heads or "
                "another width"
            )
        if lam != int(lam):
            raise UsageError(
                f"lam must be an integer, not {lam:g}, because the multiplier starts with entries of both signs and "
                "negative numbers have no fractional power; call local_filter with a positive multiplier instead"
            )
        self.heads, self.scale, self.lam, self.gamma = heads, scale, lam, gamma
        self.widths = (dim_qk, dim_qk, dim_v)
        self.attn_drop = attn_drop
        self.pre_proj = nn.Conv2d(dim, sum(self.widths), 1, bias=qkv_bias)
        self.attn: nn.Module
        if strict:
            self.attn = StrictFilters(dim_qk, heads, self.neighborhood)
        else:
            near = self.neighborhood
            self.attn = nn.Sequential(
                nn.Conv2d(dim_qk, dim_qk, near.size, 1, near.radius, near.dilation, groups=dim_qk // group_width),
                nn.GELU(),
                nn.Conv2d(dim_qk, heads * near.offsets, 1, groups=groups),
            )
        self.ghost_head = _ghost_head(dim_v, kernel_size, mul=bool(lam), add=bool(gamma))
        self.post_proj = nn.Linear(dim_v, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def ghosts(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the trained multiplier and addend, each (dim_v, k, k) or None if omitted."""
        if self.ghost_head is None:
            return None, None
        if self.lam and self.gamma:
            return self.ghost_head[0, 0], self.ghost_head[1, 0]
        return (self.ghost_head[0], None) if self.lam else (None, self.ghost_head[0])

    def forward(self, x: Tensor) -> Tensor:
        """Attend on a map (B, Y, X, dim)."""
        q, k, v = self.pre_proj(x.permute(0, 3, 1, 2)).split(self.widths, 1)
        product = q * k if self.scale == 1 else q * k * self.scale
        filters, (mul, add) = self.attn(product), self.ghosts()
        if self.is_recording("local_filters"):  # computed separately, so that recording does not change the output
            self.record("local_filters", self._softmax(filters))
        if mul is not None and self.is_recording("ghost_mul"):
            self.record("ghost_mul", mul**self.lam)
        if add is not None and self.is_recording("ghost_add"):
            self.record("ghost_add", self.gamma * add)
        dropped = self.training and self.attn_drop > 0
        if dropped:
            filters = F.dropout(self._softmax(filters), self.attn_drop).flatten(1, 2)
        near = self.neighborhood
        out = local_filter(
            v,
            filters,
            mul,
            add,
            kernel_size=near.size,
            dilation=near.dilation,
            lam=self.lam,
            gamma=self.gamma,
            softmax=not dropped,
        )
        return self.proj_drop(self.post_proj(out.permute(0, 2, 3, 1)))

    def _softmax(self, filters: Tensor) -> Tensor:
        """Return the softmax of (B, H K, Y, X), as (B, H, K, Y, X)."""
        return filters.unflatten(1, (self.heads, self.neighborhood.offsets)).softmax(2)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, kernel_size={self.neighborhood.size}, lam={self.lam:g}, gamma={self.gamma:g}"


class StrictFilters(nn.Module):
    """Filters by Eq. 7: for each offset, a term from the pixel's product and a term from the neighbor's product.

    Maps products (B, dim, Y, X), zero outside of the map, to filters (B, H K, Y, X). `rk` and `rq` (dim, H, K) multiply the
    pixel's and the neighbor's product, `rb` (H, K) is added. All are initialized from a truncated normal of std 0.02.

    Source: ELSA, Eq. 7, Algorithm 2.
    """

    def __init__(self, dim: int, heads: int, neighborhood: Neighborhood) -> None:
        super().__init__()
        self.neighborhood = neighborhood
        self.rq = nn.Parameter(torch.empty(dim, heads, neighborhood.offsets))
        self.rk = nn.Parameter(torch.empty(dim, heads, neighborhood.offsets))
        self.rb = nn.Parameter(torch.empty(heads, neighborhood.offsets))
        for parameter in self.parameters():
            nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, product: Tensor) -> Tensor:
        pixels, neighbors = (torch.einsum("bcyx,cho->bhoyx", product, weight) for weight in (self.rk, self.rq))
        return (pixels + read_at_neighbors(neighbors, self.neighborhood) + self.rb[..., None, None]).flatten(1, 2)


def _ghost_head(dim: int, kernel_size: int, *, mul: bool, add: bool) -> nn.Parameter | None:
    """Initialize the multiplier from a normal of std 1, the addend from a truncated normal of std 0.02, as published."""
    parts = []
    if mul:
        parts.append(torch.randn(1, dim, kernel_size, kernel_size))
    if add:
        parts.append(nn.init.trunc_normal_(torch.empty(1, dim, kernel_size, kernel_size), std=0.02))
    if not parts:
        return None
    return nn.Parameter(torch.stack(parts) if len(parts) > 1 else parts[0])
