"""Task-specific results of one variant: metric labels, tables, matrices and reliability diagrams.

Sections are created from saved predictions by a task (`Task.sections`), stored in the study's result, and drawn by the
report.
"""

from dataclasses import dataclass, field
from typing import Literal

Cell = int | float | str | None  #: None: no value


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Label and unit of a metric."""

    label: str  #: label in running text: "top-1 accuracy"
    column: str = ""  #: column heading; empty: use the label
    share: bool = False  #: whether it is a fraction, displayed in percent
    higher_is_better: bool = True  #: whether a higher value is better
    best: float | None = None  #: the best possible value; None: 1, or 0 if lower is better


@dataclass(frozen=True, kw_only=True)
class Column:
    """A table column and its format: text, counts, fractions displayed in percent, or numbers."""

    name: str
    kind: Literal["text", "count", "share", "number"] = "number"
    #: `own`: shown for each variant separately; `common`: equal for all variants; `compared`: shown side by side
    role: Literal["own", "common", "compared"] = "own"
    #: metric whose parts are the rows ("miou": the IoU of each class), for intervals of the differences to the baseline
    parts_of: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells. With `compared` columns, the first column matches rows across variants."""

    columns: list[Column]
    rows: list[list[Cell]]
    ordered: bool = False  #: whether rows have an order, so that compared columns are drawn as curves


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Counts of (row, column) pairs, such as a confusion matrix, summed over seeds.

    Cells are drawn as fractions of their row.
    """

    rows: list[str]
    columns: list[str]
    row_axis: str  #: "true class"
    column_axis: str  #: "predicted class"
    counts: list[list[int]]


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Confidence and accuracy in equal-width bins from 0 to 1, with the predictions of all seeds pooled."""

    counts: list[int]  #: number of predictions per bin
    stated: list[float | None]  #: mean confidence per bin; None for empty bins
    observed: list[float | None]  #: accuracy per bin; None for empty bins
    error_by_seed: list[float]  #: expected calibration error: mean |confidence - accuracy|, weighted by bin counts


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of a task's results for one variant; sections with the same `name` are shown together."""

    name: str  #: equal for all variants; lower case, used in anchors
    title: str
    note: str = ""  #: how to read the section; equal for all variants
    numbers: dict[str, float] = field(default_factory=dict)  #: fractions by label, displayed in percent
    table: Table | None = None
    matrix: Matrix | None = None
    reliability: Reliability | None = None
