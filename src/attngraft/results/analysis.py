"""What an analysis found, as plain data: written to a JSON file, read by everything that draws.

An analysis says what it found in these words (curves, pictures, matrices, distributions, a table), a report draws them.
Neither knows the other, and a new analysis needs no new drawing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from attngraft.results.sections import Table

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve; None where there is no such value. `low` and `high` bound a band around it."""

    name: str
    subject: int | None = None  #: whose it is, by place; None: nobody's, drawn dotted (a bound, chance)
    x: list[float]
    y: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None
    dashed: bool = False  #: a second curve of the same subject


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Curves over one axis, often the layers."""

    title: str
    lines: list[Line]
    x_axis: str
    y_axis: str = ""
    ticks: list[str] = field(default_factory=list)  #: what stands at x = 0, 1, ...; empty: x are numbers
    kind: Literal["curves"] = "curves"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A map of numbers, an image, or a map laid over an image."""

    caption: str = ""
    values: list[list[float]] | None = None
    image: str | None = None  #: PNG, base64


@dataclass(frozen=True, kw_only=True)
class Row:
    """Pictures beside each other."""

    name: str
    pictures: list[Picture]


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Rows of pictures. Maps are colored from `low` to `high`; None: each from its own least number to its largest."""

    title: str
    rows: list[Row]
    low: float | None = None
    high: float | None = None
    diverging: bool = False  #: 0 is in the middle of the colors
    kind: Literal["pictures"] = "pictures"


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A matrix with names at its sides; None where there is no such number, drawn as empty."""

    title: str
    rows: list[str]
    columns: list[str]
    row_axis: str
    column_axis: str
    cells: list[list[float | None]]
    low: float | None = None
    high: float | None = None
    diverging: bool = False  #: 0 is in the middle of the colors
    kind: Literal["grid"] = "grid"


@dataclass(frozen=True, kw_only=True)
class Box:
    """A distribution at one place of the axis."""

    at: int  #: place among `Boxes.ticks`
    subject: int
    quantiles: tuple[float, float, float, float, float]  #: 5, 25, 50, 75 and 95 percent
    mean: float


@dataclass(frozen=True, kw_only=True)
class Boxes:
    """Distributions over one axis."""

    title: str
    boxes: list[Box]
    ticks: list[str]
    x_axis: str
    y_axis: str = ""
    kind: Literal["boxes"] = "boxes"


Panel = Curves | Pictures | Grid | Boxes


@dataclass(frozen=True, kw_only=True)
class AnalysisResult:
    """The answer of one analysis."""

    name: str  #: of the analysis, as the command line has it
    title: str
    note: str  #: how to read it, and what was chosen where the paper does not say
    source: str  #: "CB, Figs. 3a and 5a"
    subjects: list[str]  #: names of the models
    baseline: int | None = None  #: the place of that which the others are compared with, where there is one
    panels: list[Panel]
    table: Table  #: every number, one a row: what the .csv holds
    numbers: dict[str, float] = field(default_factory=dict)  #: the few that sum it up, by what they are called
    left_out: dict[str, str] = field(default_factory=dict)  #: what could not be shown (a model, a layer), and why
    made: Mapping[str, Any] = field(default_factory=dict)  #: command, data, images, weights, version, day
    format: int = FORMAT
