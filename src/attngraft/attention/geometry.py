"""What a graft may know of the place where it stands: widths, heads, tokens. Never a host's module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attngraft.attention.hook_points import HookPoint

#: of a host whose only leading token is a class token
CLASS = ("class",)


def prefix_names(*, class_token: bool = True, distillation: bool = False, registers: int = 0) -> tuple[str, ...]:
    """Names of a host's leading tokens, in the order in which every host of ours has them."""
    special = (*CLASS * class_token, *("distillation",) * distillation)
    return (*special, *(f"register {number}" for number in range(1, registers + 1)))


@dataclass(frozen=True)
class HeadRows:
    """Rows of a host's projection that make one of q, k, v: head h has rows `start + h * step` and the `width - 1` after.

    Where q, k and v stand as three blocks, `step` is `width`; where each head's q, k and v stand together, `step` is the
    width of the three.
    """

    #: tensors whose first axis holds these rows, relative to the site's module, and how many numbers one row of each has
    parameters: Mapping[str, int]
    start: int
    width: int
    step: int

    def spans(self, first: int, stop: int) -> tuple[tuple[int, int], ...]:
        """The rows (start, stop) of heads `first` to `stop - 1`, neighbours joined."""
        if self.step == self.width and first < stop:
            return ((self.start + first * self.step, self.start + stop * self.step),)
        starts = [self.start + head * self.step for head in range(first, stop)]
        return tuple((start, start + self.width) for start in starts)


@dataclass(frozen=True)
class Projection:
    """What the host's projections are, for a graft that adds some of its own beside them."""

    bias: bool = True
    norm: Literal["batch"] | None = None  #: behind every linear map: batch norm over all tokens of the batch
    activation: str | None = None  #: before the output projection; a name that timm knows


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """A site as a graft sees it.

    `tokens` is what the module sees in one sequence and `sequences` how many sequences one input makes (windows), both at
    the host's own input size; `tokens` is None where that is not known before a forward pass.
    """

    dim: int  #: C, width of the tokens that enter; they leave with the same, where a site does not say otherwise
    tokens: int | None = None  #: N, tokens of one sequence, prefix tokens included
    sequences: int = 1  #: sequences (windows) per input
    prefix: tuple[str, ...] = ()  #: names of the leading tokens that stand on no grid; see `prefix_names`
    grid: tuple[int, int] | None = None  #: (rows, columns) of the whole map of spatial tokens
    #: (rows, columns) from one token of a sequence to the next, where what lies between is other sequences' (row by row):
    #: `grid` is then of one sequence, and the map so many times as large
    apart: tuple[int, int] | None = None
    causal: bool = False  #: tokens must not see later ones
    padded: bool = False  #: a batch may hold padding tokens
    #: the host's rule for weight matrices; `torch` is that of `torch.nn.Linear`
    init: Literal["trunc_normal", "xavier_uniform", "torch"] = "trunc_normal"

    @property
    def prefix_tokens(self) -> int:
        """How many leading tokens stand on no grid (class, distillation, registers)."""
        return len(self.prefix)

    @property
    def class_token(self) -> bool:
        """Whether token 0 is a class token."""
        return self.prefix[:1] == CLASS

    @property
    def on_a_map(self) -> bool:
        """Whether tokens of this site, or the keys that it asks, stand on a map of the image."""
        return self.grid is not None

    def width(self, hook_point: HookPoint) -> int:
        """Width of the last axis of what stands at `hook_point`."""
        return self.dim

    def shape(self, hook_point: HookPoint) -> tuple[int, ...] | None:
        """Shape, for one input, of the tensor that a graft at `hook_point` receives; None where tokens are not known."""
        return None if self.tokens is None else (self.sequences, self.tokens, self.width(hook_point))


@dataclass(frozen=True, kw_only=True)
class AttentionGeometry(Geometry):
    """An attention site."""

    heads: int  #: H
    key_width: int  #: width of q and k per head
    value_width: int  #: dv, width of v per head
    window: tuple[int, int] | None = None  #: (rows, columns) of a window; None where attention is global
    cross: bool = False  #: keys and values come from other tokens than the queries
    keys_grid: tuple[int, int] | None = None  #: (rows, columns) of the map that those other tokens are; None: of none
    talking: bool = False  #: heads are mixed with each other behind the softmax, so that there are as many as there are
    query_tokens: int | None = None  #: Nq, where the query side has not all N tokens (subsampling)
    key_tokens: int | None = None  #: Nk, where the key side has not all N tokens (subsampled keys)
    out_dim: int | None = None  #: width of the tokens that leave, where it is not `dim`
    projection: Projection = Projection()
    #: "q", "k", "v" -> rows of the host's projections; several where biases stand beside them
    rows: Mapping[str, tuple[HeadRows, ...]] = field(default_factory=dict)
    query_key_parameters: tuple[str, ...] = ()  #: beside `rows`, what serves only the scores (qk-norm, bias tables)
    score_rows: tuple[str, ...] = ()  #: those of them whose first axis counts heads
    score_columns: tuple[str, ...] = ()  #: those of them whose last axis counts heads

    @property
    def own_keys(self) -> bool:
        """Whether every query stands beside its own key: the map (Nq, Nk) is square, and its diagonal means something."""
        return not self.cross and self.query_tokens in (None, self.tokens) and self.key_tokens in (None, self.tokens)

    @property
    def on_a_map(self) -> bool:
        return self.grid is not None or self.keys_grid is not None

    def head_rows(self, role: Literal["q", "k", "v"], first: int, stop: int) -> tuple[tuple[str, int, int], ...]:
        """(parameter, start, stop) of the rows that make q, k or v of heads `first` to `stop - 1`, as `Unused.rows`."""
        rows = self.rows.get(role, ())
        return tuple((name, *span) for each in rows for name in each.parameters for span in each.spans(first, stop))

    def width(self, hook_point: HookPoint) -> int:
        return self.dim if self.out_dim is None else self.out_dim

    def shape(self, hook_point: HookPoint) -> tuple[int, ...] | None:
        if hook_point == "space":
            return None if self.grid is None else (1, *self.grid, self.dim)
        if self.tokens is None:
            return None
        queries = self.tokens if self.query_tokens is None else self.query_tokens
        if hook_point == "heads":
            return self.sequences, self.heads, queries, self.value_width
        if hook_point == "weights":
            return self.sequences, self.heads, queries, self.tokens if self.key_tokens is None else self.key_tokens
        if hook_point == "attn.end" and self.window is not None and self.grid is not None:  # windows put back
            return 1, *self.grid, self.width(hook_point)
        return self.sequences, queries, self.width(hook_point)


@dataclass(frozen=True, kw_only=True)
class MlpGeometry(Geometry):
    """An MLP site."""

    hidden: int  #: width after the activation

    def width(self, hook_point: HookPoint) -> int:
        return self.hidden if hook_point == "mlp.mid" else self.dim
