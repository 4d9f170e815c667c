"""Inputs and outputs of mix grafts, which replace the computation from scores to heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from torch import Tensor

if TYPE_CHECKING:
    from attngraft.attention.template import AttentionSite


class Projected(NamedTuple):
    """Output of `project`, with Nq queries and Nk keys; B includes the windows of window attention."""

    q: Tensor  #: (B, H, Nq, dk)
    k: Tensor  #: (B, H, Nk, dk)
    v: Tensor  #: (B, H, Nk, dv)
    queries: Tensor  #: (B, Nq, C), the tokens that the queries were projected from
    bias: Tensor | None = None  #: bias added to the scaled scores, including the mask; boolean: True at visible keys
    causal: bool = False
    keys: Tensor | None = None  #: (B, Nk, C), the tokens that keys and values were projected from; None: `queries`
    rest: Any = None  #: further inputs of the adapter's other steps, such as `scores` and `merge`
    #: boolean mask (b, N), with b as in `MixContext.bias`: False for tokens that pad a window; None: no padding
    present: Tensor | None = None

    def replace(self, **fields: Any) -> Self:
        """Return a copy with other values of `fields`, like `_replace`, which torch 2.6 cannot compile."""
        return type(self)(**{**dict(zip(self._fields, self, strict=True)), **fields})


class Mixed(NamedTuple):
    """Output of a mix graft."""

    heads: Tensor  #: (B, H, Nq, dv)
    #: applied to the tokens (B, Nq, C) after the output projection; a graft that sets it must set `Graft.adds_after`
    after: Callable[[Tensor], Tensor] | None = None


class MixContext:
    """Input of a mix graft: the host's projections, and the host's own attention for grafts that build on it."""

    def __init__(self, site: AttentionSite, projected: Projected, again: Callable[[Tensor], Projected]) -> None:
        self._site, self._again = site, again
        self.projected = projected

    @property
    def keys(self) -> Tensor:
        """(B, Nk, C), the tokens on the key side."""
        return self.projected.queries if self.projected.keys is None else self.projected.keys

    @property
    def scale(self) -> float:
        """Factor of q k^T, before the bias is added."""
        return self._site.scale

    def bias(self) -> Tensor | None:
        """Return the bias added to the scaled scores, including the mask: (b, H or 1, Nq or 1, Nk or 1).

        b divides B, and batch entry i uses bias i mod b (the windows of all images share their biases). A boolean bias is
        True at visible keys.
        """
        return self._site.shared_bias(self.projected)

    def scores(self) -> Tensor:
        """Return the input of the host's softmax (B, H, Nq, Nk): scaled products plus bias and mask."""
        return self._site.scores(self.projected)

    def attend(self) -> Tensor:
        """Run the host's own attention with the site's `weights` grafts and dropout; return heads (B, H, Nq, dv)."""
        return self._site.attend(self.projected)

    @property
    def plain(self) -> bool:
        """Whether `attend` is exactly softmax(scores) v, without `weights` grafts and active dropout."""
        return not (self._site.grafts_at("weights") or self.dropout)

    @property
    def is_recording(self) -> bool:
        """Whether a recorder would store the scores or the map that `attend` records."""
        return self._site.is_recording("scores", "weights")

    @property
    def dropout(self) -> float:
        """Current dropout probability of the attention weights; 0 in eval mode."""
        return self._site.dropped()

    def project_again(self, tokens: Tensor) -> MixContext:
        """Return the context for other tokens (B, N, C), with the same projections, bias and mask."""
        return MixContext(self._site, self._again(tokens), self._again)

    def join(self, heads: Tensor) -> Tensor:
        """Concatenate heads (B, H, N, dv) to tokens (B, N, H * dv), the input of the output projection."""
        return heads.transpose(1, 2).flatten(2)
