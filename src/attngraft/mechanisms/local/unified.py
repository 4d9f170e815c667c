"""The family of local attention in one module: terms of the scores, windows or neighborhoods, and norm.

    scores_ij = q_i . k_j + q_i . rk_(j - i) + rq_(j - i) . k_j + rb_(j - i)        each of the four on or off
    out_i = sum over j of norm(scores_i)_j v_j

j runs over the windows of Swin, or over the k x k neighborhood of i; the norm is a softmax, a filter norm (mean 0 and
standard deviation 1 over j), or the identity. In a neighborhood, keys and values outside of the map are zero,
and are included; shifted windows mask pairs of pixels that only the shift brings together.

Source: ELSA, Eq. 4 and 6, Tables 1 to 3. In the printed Eq. 4 rb multiplies the value inside of the norm; the paper's other
equations imply a sum.
"""

from collections.abc import Callable, Collection
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.attention.recorder import Recordable
from attngraft.errors import UsageError
from attngraft.mechanisms.local.geometry import (
    Neighborhood,
    join_windows,
    relative_positions,
    shifted_window_mask,
    split_windows,
)
from attngraft.mechanisms.local.ops import local_filter, local_scores
from attngraft.mechanisms.local.shifted import read_at_neighbors

Term = Literal["qk", "qr", "rk", "rb"]  #: q.k, q.r^k, r^q.k, r^b
Norm = Literal["softmax", "filter", "identity"]
TERMS: tuple[Term, ...] = get_args(Term)
NORMS: tuple[Norm, ...] = get_args(Norm)

#: the terms of the paper's networks (Table 1); "net6" in neighborhoods is its Eq. 6
NETWORKS: dict[str, tuple[Term, ...]] = {
    "swin": ("qk", "rb"),
    "net1": ("qk",),
    "net2": ("qr",),
    "net3": ("rk",),
    "net4": ("rb",),
    "net5": ("qr", "rk"),
    "net6": ("qr", "rk", "rb"),
    "net7": ("qk", "qr", "rk", "rb"),
}


class LocalAttention(Recordable, nn.Module):
    """Local attention on a map (B, Y, X, dim), with the chosen terms, area and norm.

    Special cases: `terms=("qk", "rb")` in windows with a softmax is Swin's attention. In a neighborhood with
    `norm="identity"`, `terms=("qr",)` is an involution, and `terms=("rb",)` with `heads=dim` a depthwise convolution
    between two linear layers.

    Args:
        heads: number of heads, H.
        terms: which of the terms "qk", "qr", "rk" and "rb" are summed; `NETWORKS` lists the paper's combinations.
        area: "window" or "neighborhood".
        size: height and width of the area; odd for a neighborhood.
        shift: shift of the windows, less than `size`; maps are zero-padded to whole windows, and the padding is attended to.
        norm: "softmax", "filter" or "identity".
        scale: scale of the queries; (dim / H)^-0.5 by default.

    The rows of `proj_in` are queries, keys and values, in this order, without queries or keys that no term uses.
    `rk`, `rq` (H, D, positions) and `rb` (H, positions) are initialized from truncated normals of std 0.02. A neighborhood
    has size^2 positions, a window (2 size - 1)^2, indexed by key minus query.

    Records the weights of the values: `local_filters` (B, H, K, Y, X) for neighborhoods, `weights` (B, windows, H, n, n) for
    windows.

    Raises:
        UsageError: a term, area or norm is unknown, there are no terms, H does not divide dim, or `size` or `shift` is
            invalid.

    Source: ELSA, Eq. 4.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        terms: Collection[Term] = NETWORKS["net7"],
        area: Literal["window", "neighborhood"] = "neighborhood",
        size: int = 7,
        shift: int = 0,
        norm: Norm = "softmax",
        scale: float | None = None,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        _check(dim, heads, terms=terms, area=area, size=size, shift=shift, norm=norm)
        width = dim // heads
        self.heads, self.terms, self.norm = heads, frozenset(terms), norm
        self.area, self.size, self.shift = area, size, shift
        self.scale = width**-0.5 if scale is None else scale
        self.has_queries, self.has_keys = bool(self.terms & {"qk", "qr"}), bool(self.terms & {"qk", "rk"})
        self.proj_in = nn.Linear(dim, dim * (1 + self.has_queries + self.has_keys), bias=qkv_bias)
        positions = size**2 if area == "neighborhood" else (2 * size - 1) ** 2
        self.rk = _table("qr" in self.terms, heads, width, positions)
        self.rq = _table("rk" in self.terms, heads, width, positions)
        self.rb = _table("rb" in self.terms, heads, positions)
        self.proj_out = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        """Attend on a map (B, Y, X, dim)."""
        out = self._in_windows(x) if self.area == "window" else self._in_neighborhoods(x)
        return self.proj_drop(self.proj_out(out))

    def _projected(self, x: Tensor, form: Callable[[Tensor], Tensor]) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Return scaled queries, keys and values, each reshaped by `form`; None for queries or keys without terms."""
        *parts, values = self.proj_in(x).chunk(1 + self.has_queries + self.has_keys, -1)
        queries = form(parts[0] * self.scale) if self.has_queries else None
        return queries, form(parts[-1]) if self.has_keys else None, form(values)

    def _in_neighborhoods(self, x: Tensor) -> Tensor:
        near = Neighborhood(self.size)
        q, k, v = self._projected(x, lambda part: part.permute(0, 3, 1, 2))
        scores = v.new_zeros(v.shape[0], self.heads, near.offsets, *v.shape[2:])
        if q is not None and k is not None and "qk" in self.terms:
            scores = scores + local_scores(q, k, heads=self.heads, kernel_size=self.size).unflatten(1, (self.heads, -1))
        if q is not None and self.rk is not None:
            scores = scores + torch.einsum("bhdyx,hdo->bhoyx", q.unflatten(1, (self.heads, -1)), self.rk)
        if k is not None and self.rq is not None:
            maps = torch.einsum("bhdyx,hdo->bhoyx", k.unflatten(1, (self.heads, -1)), self.rq)
            scores = scores + read_at_neighbors(maps, near)
        if self.rb is not None:
            scores = scores + self.rb[..., None, None]
        if self.norm == "filter":
            scores = normalized(scores.movedim(2, -1), self.norm).movedim(-1, 2)
        if self.is_recording("local_filters"):  # computed separately, because the operation includes the softmax
            self.record("local_filters", scores.softmax(2) if self.norm == "softmax" else scores)
        out = local_filter(v, scores.flatten(1, 2), kernel_size=self.size, softmax=self.norm == "softmax")
        return out.permute(0, 2, 3, 1)

    def _in_windows(self, x: Tensor) -> Tensor:
        rows, columns = x.shape[1:3]
        x = F.pad(x, (0, 0, 0, -columns % self.size, 0, -rows % self.size))
        padded, visible = x.shape[1:3], None
        if self.shift:
            x = x.roll((-self.shift, -self.shift), (1, 2))
            visible = shifted_window_mask(padded, self.size, self.shift, x.device).unsqueeze(1)
        q, k, v = self._projected(  # (B, windows, H, n, D)
            split_windows(x, self.size), lambda part: part.unflatten(-1, (self.heads, -1)).transpose(2, 3)
        )
        positions = relative_positions(self.size, self.size).to(x.device)
        scores = v.new_zeros(*v.shape[:4], v.shape[3])
        if q is not None and k is not None and "qk" in self.terms:
            scores = scores + q @ k.transpose(-2, -1)
        if q is not None and self.rk is not None:
            scores = scores + _at_positions(q @ self.rk, positions)
        if k is not None and self.rq is not None:
            scores = scores + _at_positions(k @ self.rq, positions.t()).transpose(-2, -1)
        if self.rb is not None:
            scores = scores + self.rb[:, positions]
        weights = normalized(scores, self.norm, visible)
        self.record("weights", weights)
        out = weights @ v
        out = join_windows(out.transpose(2, 3).flatten(3), padded)
        if self.shift:
            out = out.roll((self.shift, self.shift), (1, 2))
        return out[:, :rows, :columns]

    def extra_repr(self) -> str:
        terms = ", ".join(term for term in TERMS if term in self.terms)
        return f"heads={self.heads}, terms=({terms}), {self.area} of {self.size}, norm={self.norm}"


def normalized(scores: Tensor, norm: Norm, visible: Tensor | None = None) -> Tensor:
    """Normalize scores (..., pixels) to weights.

    Args:
        visible: broadcastable to the scores; hidden pixels have weight 0 and are excluded from the norm.

    A filter norm is (scores - mean) / (standard deviation + 1e-5), both over visible pixels. The
    standard deviation is biased; the paper only names the norm.
    """
    if norm == "softmax":
        return (scores if visible is None else scores.masked_fill(~visible, -torch.inf)).softmax(-1)
    seen = torch.ones_like(scores[..., :1, :] if scores.ndim > 1 else scores) if visible is None else visible
    if norm == "filter":
        count = seen.sum(-1, keepdim=True)
        centered = (scores - (scores * seen).sum(-1, keepdim=True) / count) * seen
        scores = centered / ((centered.square().sum(-1, keepdim=True) / count).sqrt() + 1e-5)
    return scores * seen


def _at_positions(products: Tensor, positions: Tensor) -> Tensor:
    """Gather products with every entry of a table (..., n, positions) at the pairs' relative positions, (..., n, n)."""
    return products.gather(-1, positions.expand(*products.shape[:-1], -1))


def _table(used: bool, *shape: int) -> nn.Parameter | None:
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=0.02)) if used else None


def _check(dim: int, heads: int, *, terms: Collection[Term], area: str, size: int, shift: int, norm: str) -> None:
    if heads < 1 or dim % heads:
        raise UsageError(
            f"the width {dim} is not divisible by {heads} heads; choose another number of heads or another width"
        )
    unknown = sorted(set(terms) - set(TERMS))
    if unknown or not terms:
        raise UsageError(f"terms must be one or more of {', '.join(TERMS)}; got {', '.join(unknown) or 'none'}")
    if area not in ("window", "neighborhood"):
        raise UsageError(f"area must be window or neighborhood, not {area!r}")
    if norm not in NORMS:
        raise UsageError(f"norm must be one of {', '.join(NORMS)}, not {norm!r}")
    if size < 1 or (area == "neighborhood" and size % 2 == 0):
        raise UsageError(f"the size of a {area} must be {'odd' if area == 'neighborhood' else '1 or more'}, not {size}")
    if not 0 <= shift < size or (shift and area == "neighborhood"):
        raise UsageError(f"shift must be less than the size {size} for windows, and 0 for neighborhoods; got {shift}")
