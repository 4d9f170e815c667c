"""Task-specific results of one variant: metric labels, tables, confusion matrices, reliability diagrams.

A task builds sections from saved predictions (`Task.sections`), a study stores them in its result, and the report draws
them.
"""

from dataclasses import dataclass, field
from typing import Literal

Cell = int | float | str | None  #: None where there is no value


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Label and unit of a metric."""

    label: str  #: in prose: "top-1 accuracy"
    column: str = ""  #: as a column heading; empty: the label
    share: bool = False  #: a share of 1, written in percent
    higher_is_better: bool = True


@dataclass(frozen=True, kw_only=True)
class Column:
    """A table column and the format of its numbers: counts, shares of 1, or plain numbers."""

    name: str
    kind: Literal["text", "count", "share", "number"] = "number"
    #: `own`: shown for each variant separately; `common`: the same for all variants; `compared`: side by side for all
    role: Literal["own", "common", "compared"] = "own"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells. With `compared` columns, the first column holds the row names, the same for all variants."""

    columns: list[Column]
    rows: list[list[Cell]]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Counts of (row, column) pairs, such as a confusion matrix, summed over seeds; drawn as shares of each row."""

    rows: list[str]
    columns: list[str]
    row_axis: str  #: "true class"
    column_axis: str  #: "predicted class"
    counts: list[list[int]]


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Confidence against accuracy in equal-width bins over 0 to 1, all seeds pooled."""

    counts: list[int]  #: predictions per bin
    stated: list[float | None]  #: mean confidence of a bin; None if it is empty
    observed: list[float | None]  #: accuracy of a bin
    error_by_seed: list[float]  #: expected calibration error: mean |confidence - accuracy|, weighted by bin counts


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of a task's results for one variant. Sections of the same `name` are shown together."""

    name: str  #: the same in all variants; lower case, used in anchors
    title: str
    note: str = ""  #: how to read it; the same in all variants
    numbers: dict[str, float] = field(default_factory=dict)  #: shares of 1, by label
    table: Table | None = None
    matrix: Matrix | None = None
    reliability: Reliability | None = None
