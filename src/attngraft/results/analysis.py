"""The result of an analysis as plain data, written to a JSON file and drawn by the report.

Every result is composed of curves, pictures, matrices, distributions and a table, so a new analysis needs no drawing code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from attngraft.results.sections import Table

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve (None: missing value); `low` and `high` bound a band around it."""

    name: str
    subject: int | None = None  #: index of the model; None: a reference line (bound or chance level), drawn dotted
    x: list[float]
    y: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None
    dashed: bool = False  #: whether this is another curve of the same model


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Curves over a common axis, often the layers."""

    title: str
    lines: list[Line]
    x_axis: str
    y_axis: str = ""
    ticks: list[str] = field(default_factory=list)  #: labels of x = 0, 1, ...; empty: x is numeric
    kind: Literal["curves"] = "curves"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A map of numbers, an image, or a map over an image."""

    caption: str = ""
    values: list[list[float]] | None = None
    image: str | None = None  #: PNG, base64


@dataclass(frozen=True, kw_only=True)
class PictureRow:
    """Pictures side by side."""

    name: str
    pictures: list[Picture]


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Rows of pictures. Map colors range from `low` to `high` (None: each map's minimum and maximum)."""

    title: str
    rows: list[PictureRow]
    low: float | None = None
    high: float | None = None
    diverging: bool = False  #: a color map centered on 0
    kind: Literal["pictures"] = "pictures"


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A matrix with named rows and columns; missing numbers (None) are drawn as empty cells."""

    title: str
    rows: list[str]
    columns: list[str]
    row_axis: str
    column_axis: str
    cells: list[list[float | None]]
    low: float | None = None
    high: float | None = None
    diverging: bool = False  #: a color map centered on 0
    kind: Literal["grid"] = "grid"


@dataclass(frozen=True, kw_only=True)
class Box:
    """A distribution at one position of the axis."""

    at: int  #: index into `Boxes.ticks`
    subject: int  #: index of the model
    quantiles: tuple[float, float, float, float, float]  #: percentiles 5, 25, 50, 75 and 95
    mean: float


@dataclass(frozen=True, kw_only=True)
class Boxes:
    """Distributions over a common axis."""

    title: str
    boxes: list[Box]
    ticks: list[str]
    x_axis: str
    y_axis: str = ""
    kind: Literal["boxes"] = "boxes"


Panel = Curves | Pictures | Grid | Boxes


@dataclass(frozen=True, kw_only=True)
class AnalysisResult:
    """The result of one analysis."""

    name: str  #: name of the analysis on the command line
    title: str
    note: str  #: how to read the result, and our choices where the paper leaves details open
    source: str  #: papers: "CB, Figs. 3a and 5a"
    subjects: list[str]  #: names of the models
    baseline: int | None = None  #: index of the model that the others are compared with, if any
    panels: list[Panel]
    table: Table  #: all numbers, written to the .csv file
    numbers: dict[str, float] = field(default_factory=dict)  #: a few summary numbers by label
    left_out: dict[str, str] = field(default_factory=dict)  #: model or layer that is not shown -> the reason
    made: Mapping[str, Any] = field(default_factory=dict)  #: origin: command, data, images, weights, version, date
    format: int = FORMAT
