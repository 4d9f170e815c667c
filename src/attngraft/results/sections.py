"""What a task says in plain data: what its metrics are called, and of a variant beside them tables, matrices, reliability.

A task makes sections from saved predictions (`Task.sections`), a study keeps them in its result, a report draws them. None
of the three knows the others: a new kind of task says what it has to say in these words.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Cell = int | float | str | None  #: None where there is no such value


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What a metric is called, and its unit."""

    label: str  #: in prose: "top-1 accuracy"
    column: str = ""  #: over a column of numbers; empty: the label
    share: bool = False  #: a share of 1, written in percent


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table, and how its numbers are written: whole, as a share of 1, or as they are."""

    name: str
    kind: Literal["text", "count", "share", "number"] = "number"
    #: `own`: shown for each variant apart; `common`: the same for all variants; `compared`: set side by side for them
    role: Literal["own", "common", "compared"] = "own"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells. Where columns are `compared`, the first column names the rows, the same for all variants."""

    columns: list[Column]
    rows: list[list[Cell]]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """How often a row went with a column: whole counts, summed over seeds. Drawn as shares of each row's sum."""

    rows: list[str]
    columns: list[str]
    row_axis: str  #: "true class"
    column_axis: str  #: "predicted class"
    counts: list[list[int]]


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """What was stated with confidence against what came true, in bins of equal width over 0 to 1, all seeds together."""

    counts: list[int]  #: predictions in each bin
    stated: list[float | None]  #: mean confidence in the bin; None where it is empty
    observed: list[float | None]  #: share that came true
    error_by_seed: list[float]  #: expected calibration error: mean distance of the two, weighed by the bins' counts


@dataclass(frozen=True, kw_only=True)
class Section:
    """One thing that a task says of one variant. Sections of one `name` stand together, variant beside variant."""

    name: str  #: the same in all variants; lower case, for anchors
    title: str
    note: str = ""  #: how to read it; the same in all variants
    numbers: dict[str, float] = field(default_factory=dict)  #: shares of 1, by what they are called
    table: Table | None = None
    matrix: Matrix | None = None
    reliability: Reliability | None = None
