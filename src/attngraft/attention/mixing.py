"""What a mix graft gets and gives: it stands where scores become heads, and needs more of its place than one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from attngraft.attention.template import AttentionSite


class Projected(NamedTuple):
    """What `project` returns. Query side Nq rows, key side Nk rows; B counts windows where there are any."""

    q: Tensor  #: (B, H, Nq, dk)
    k: Tensor  #: (B, H, Nk, dk)
    v: Tensor  #: (B, H, Nk, dv)
    queries: Tensor  #: (B, Nq, C), the tokens that the queries were projected from
    bias: Tensor | None = None  #: what is added to the scaled scores, mask included; boolean: True may be seen
    causal: bool = False
    keys: Tensor | None = None  #: (B, Nk, C), the tokens that keys and values were projected from; None: `queries`
    rest: Any = None  #: what the adapter's `merge` needs besides the heads
    #: (b, N), boolean, b as in `MixContext.bias`: False where a token only fills up its window; None: none does
    present: Tensor | None = None


class Mixed(NamedTuple):
    """What a mix graft gives: heads, and what is left to do once they are merged."""

    heads: Tensor  #: (B, H, Nq, dv)
    #: tokens (B, Nq, C) out of the output projection -> tokens; a graft that gives it says so in `Graft.adds_after`
    after: Callable[[Tensor], Tensor] | None = None


class MixContext:
    """The place of a mix graft: the host's projections of its tokens, and the host's own verbs."""

    def __init__(self, site: AttentionSite, projected: Projected, again: Callable[[Tensor], Projected]) -> None:
        self._site, self._again = site, again
        self.projected = projected

    @property
    def keys(self) -> Tensor:
        """(B, Nk, C), the tokens on the key side."""
        return self.projected.queries if self.projected.keys is None else self.projected.keys

    @property
    def scale(self) -> float:
        """What q k^T is multiplied by, before the bias."""
        return self._site.scale

    def bias(self) -> Tensor | None:
        """What is added to the scaled scores, mask included: (b, H or 1, Nq or 1, Nk or 1), where b divides B and entry
        i takes bias i mod b (the windows of an image share theirs with those of every other image). Boolean: True may be
        seen."""
        return self._site.shared_bias(self.projected)

    def scores(self) -> Tensor:
        """(B, H, Nq, Nk), what the host's softmax gets: scaled products, bias and mask."""
        return self._site.scores(self.projected)

    def attend(self) -> Tensor:
        """The host's own self-attention (B, H, Nq, dv), weights grafts and dropout included; offers its map."""
        return self._site.attend(self.projected)

    @property
    def plain(self) -> bool:
        """Whether `attend` is softmax(scores) v and nothing else: no weights graft, no dropout at work."""
        return not (self._site.grafts_at("weights") or self.dropout)

    @property
    def is_recording(self) -> bool:
        """Whether somebody wants the map that `attend` offers."""
        return self._site.is_recording("scores", "weights")

    @property
    def dropout(self) -> float:
        """The share of attention weights that is dropped now; 0 in eval mode."""
        return self._site.dropped()

    def project_again(self, tokens: Tensor) -> MixContext:
        """The place with other tokens (B, N, C), under the same projections, bias and mask."""
        return MixContext(self._site, self._again(tokens), self._again)

    def join(self, heads: Tensor) -> Tensor:
        """(B, H, N, dv) to (B, N, H * dv), heads side by side, as the output projection gets them."""
        return heads.transpose(1, 2).flatten(2)
