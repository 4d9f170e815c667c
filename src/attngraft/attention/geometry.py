"""Geometry of sites: widths, heads and tokens. Grafts read these and never a host's modules."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attngraft.attention.hook_points import HookPoint

#: prefix of a host whose only prefix token is a class token
CLASS = ("class",)


def prefix_names(*, class_token: bool = True, distillation: bool = False, registers: int = 0) -> tuple[str, ...]:
    """Return the names of a host's prefix tokens, in the order that all supported hosts use."""
    special = (*CLASS * class_token, *("distillation",) * distillation)
    return (*special, *(f"register {number}" for number in range(1, registers + 1)))


@dataclass(frozen=True)
class HeadRows:
    """Rows of a host's projection that compute q, k or v: head h has `width` rows, starting at `start + h * step`.

    `step` is `width` where q, k and v are separate blocks of rows, and larger where their rows alternate by head.
    """

    #: tensors that contain these rows along their first axis, relative to the site's module -> number of values in a row
    parameters: Mapping[str, int]
    start: int
    width: int
    step: int

    def spans(self, first: int, stop: int) -> tuple[tuple[int, int], ...]:
        """Return the rows (start, stop) of heads `first` to `stop - 1`, adjacent ranges merged."""
        if self.step == self.width and first < stop:
            return ((self.start + first * self.step, self.start + stop * self.step),)
        starts = [self.start + head * self.step for head in range(first, stop)]
        return tuple((start, start + self.width) for start in starts)


@dataclass(frozen=True)
class Projection:
    """Form of the host's projections, for grafts that add projections of the same form."""

    bias: bool = True
    norm: Literal["batch"] | None = None  #: norm after every linear map; `batch` is over all tokens of the batch
    activation: str | None = None  #: activation before the output projection, by its name in timm


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Sizes and layout of a site, for grafts.

    `tokens` is the length of one sequence in the module and `sequences` the number of sequences per input (windows), both at
    the host's own input size; `tokens` is None where it is not known before a forward pass.
    """

    dim: int  #: C, width of the input tokens, and of the output tokens unless `out_dim` is set
    tokens: int | None = None  #: N, tokens of one sequence, prefix tokens included
    sequences: int = 1  #: sequences (windows) per input
    prefix: tuple[str, ...] = ()  #: names of the leading tokens that are not on the grid; see `prefix_names`
    grid: tuple[int, int] | None = None  #: (rows, columns) of the whole map of spatial tokens
    #: stride (rows, columns) between neighboring tokens of a sequence, where sequences are interleaved on the map (row by
    #: row): `grid` is then the grid of one sequence, and the map is larger by these factors
    apart: tuple[int, int] | None = None
    causal: bool = False  #: tokens must not attend to later tokens
    padded: bool = False  #: a batch may contain padding tokens
    #: initialization of the host's weight matrices; `torch` is that of `torch.nn.Linear`
    init: Literal["trunc_normal", "xavier_uniform", "torch"] = "trunc_normal"

    @property
    def prefix_tokens(self) -> int:
        """Number of leading tokens that are not on the grid (class, distillation, registers)."""
        return len(self.prefix)

    @property
    def class_token(self) -> bool:
        """Whether token 0 is a class token."""
        return self.prefix[:1] == CLASS

    @property
    def on_a_map(self) -> bool:
        """Whether tokens or keys of this site form a map of the image."""
        return self.grid is not None

    def width(self, hook_point: HookPoint) -> int:
        """Return the width of the last axis of the tensor at `hook_point`."""
        return self.dim

    def shape(self, hook_point: HookPoint) -> tuple[int, ...] | None:
        """Return the shape of the tensor at `hook_point` for one input; None where `tokens` is not known."""
        return None if self.tokens is None else (self.sequences, self.tokens, self.width(hook_point))


@dataclass(frozen=True, kw_only=True)
class AttentionGeometry(Geometry):
    """An attention site."""

    heads: int  #: H
    key_width: int  #: width of q and k per head
    value_width: int  #: dv, width of v per head
    window: tuple[int, int] | None = None  #: (rows, columns) of a window; None where attention is global
    #: (rows, columns) by which the windows are shifted, at sites with the hook point `space`
    shift: tuple[int, int] = (0, 0)
    cross: bool = False  #: keys and values come from tokens other than the queries
    keys_grid: tuple[int, int] | None = None  #: if `cross`, (rows, columns) of the map of the key tokens; None: no map
    talking: bool = False  #: the host mixes heads after the softmax, which fixes their number
    query_tokens: int | None = None  #: Nq, where the query side has fewer than N tokens (subsampling)
    key_tokens: int | None = None  #: Nk, where the key side has fewer than N tokens (subsampled keys)
    out_dim: int | None = None  #: width of the output tokens, where it is not `dim`
    projection: Projection = Projection()
    #: "q", "k", "v" -> rows of the host's projections; several where biases are separate parameters
    rows: Mapping[str, tuple[HeadRows, ...]] = field(default_factory=dict)
    query_key_parameters: tuple[str, ...] = ()  #: further parameters that only affect the scores (qk-norm, bias tables)
    score_rows: tuple[str, ...] = ()  #: parameters in `query_key_parameters` whose first axis is heads
    score_columns: tuple[str, ...] = ()  #: parameters in `query_key_parameters` whose last axis is heads

    @property
    def own_keys(self) -> bool:
        """Whether queries and keys are the same tokens, so that the map is square with a meaningful diagonal."""
        return not self.cross and self.query_tokens in (None, self.tokens) and self.key_tokens in (None, self.tokens)

    @property
    def on_a_map(self) -> bool:
        return self.grid is not None or self.keys_grid is not None

    def head_rows(self, role: Literal["q", "k", "v"], first: int, stop: int) -> tuple[tuple[str, int, int], ...]:
        """Return (parameter, start, stop) of the rows for q, k or v of heads `first` to `stop - 1`, as in `Unused.rows`."""
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
        if hook_point == "attn.end" and self.window is not None and self.grid is not None:  # windows are merged
            return 1, *self.grid, self.width(hook_point)
        return self.sequences, queries, self.width(hook_point)


@dataclass(frozen=True, kw_only=True)
class MlpGeometry(Geometry):
    """An MLP site."""

    hidden: int  #: width after the activation

    def width(self, hook_point: HookPoint) -> int:
        return self.hidden if hook_point == "mlp.mid" else self.dim
