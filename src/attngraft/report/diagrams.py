"""Matrices and reliability diagrams as shapes that the page's templates draw; the page's own colors make them light or dark.

They are drawn here and not by matplotlib, because a study of a hundred variants has hundreds of them: each is a few
kilobytes and takes no time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from attngraft.results.sections import Matrix, Reliability
from attngraft.results.wording import plural, shorten, shown

NUMBERED = 12  #: rows and columns up to which a matrix is a table with its numbers
CELL = 12  #: side of a cell of larger ones, in units of the drawing
LEVELS = 12  #: of shade in larger ones
LABEL = 16  #: characters of a row's name in larger ones
PAIRS = 8  #: largest entries off the diagonal that are named beside larger ones

SIDE = 200  #: of a reliability diagram's square
HISTOGRAM = 34  #: height of the bars that say how many predictions a bin has


@dataclass(frozen=True, kw_only=True)
class Shaded:
    """A cell with its number, as a share of its row, and the depth of its shade (0 to 1)."""

    count: int
    share: float
    depth: float


@dataclass(frozen=True, kw_only=True)
class MatrixDrawing:
    """`cells` where it is small enough to be read as numbers; else `levels` of shade, each the path of its cells."""

    rows: list[str]
    columns: list[str]
    row_axis: str
    column_axis: str
    alt: str
    cells: list[list[Shaded]]
    levels: list[tuple[float, str]]
    margin: int  #: left of the cells and above them, for names
    size: tuple[int, int]  #: width and height with the margin
    pairs: list[tuple[str, str, int]]

    @property
    def upright(self) -> bool:
        """Whether the columns' names stand upright: side by side they would be wider than a card."""
        return sum(min(len(name), 14) for name in self.columns) > 24


@dataclass(frozen=True, kw_only=True)
class ReliabilityDrawing:
    """Points and lines in a square of `SIDE`, stated to the right, come true upwards."""

    line: str
    points: list[tuple[float, float, float]]  #: x, y, radius
    baseline: str  #: the baseline's line; empty for the baseline itself
    bars: list[tuple[float, float, float]]  #: x, width, height
    alt: str


def matrix_drawing(matrix: Matrix) -> MatrixDrawing:
    """Shares are of each row; the shade grows with their root, so that what is rare is still seen."""
    shares = [[count / (sum(row) or 1) for count in row] for row in matrix.counts]
    small = max(len(matrix.rows), len(matrix.columns)) <= NUMBERED
    largest = sorted(_off_diagonal(matrix), key=lambda entry: -entry[2])[:PAIRS]
    said = "; ".join(f"{row} as {column}: {count}" for row, column, count in largest[:3])
    rows, columns = ([shorten(name, LABEL) for name in names] for names in (matrix.rows, matrix.columns))
    margin = 10 + 7 * max((len(name) for name in (*rows, *columns)), default=0)
    return MatrixDrawing(
        rows=[shown(name) for name in matrix.rows] if small else rows,
        columns=[shown(name) for name in matrix.columns] if small else columns,
        row_axis=shown(matrix.row_axis),
        column_axis=shown(matrix.column_axis),
        alt=f"{shown(matrix.row_axis)} by row, {shown(matrix.column_axis)} by column. Most frequent off the diagonal: "
        f"{said or 'none'}.",
        cells=[
            [Shaded(count=n, share=share, depth=round(math.sqrt(share), 3)) for n, share in zip(*pair, strict=True)]
            for pair in zip(matrix.counts, shares, strict=True)
        ]
        if small
        else [],
        levels=[] if small else _levels(shares),
        margin=margin,
        size=(margin + CELL * len(columns) + 2, margin + CELL * len(rows) + 2),
        pairs=[] if small else largest,
    )


def _off_diagonal(matrix: Matrix) -> Iterable[tuple[str, str, int]]:
    for row, counts in zip(matrix.rows, matrix.counts, strict=True):
        for column, count in zip(matrix.columns, counts, strict=True):
            if count and row != column:
                yield shown(row), shown(column), count


def _levels(shares: list[list[float]]) -> list[tuple[float, str]]:
    """Opacity and path, one for all cells of a level: neighbors in a row are one rectangle."""
    paths: dict[int, list[str]] = {}
    for y, row in enumerate(shares):
        depths = [math.ceil(LEVELS * math.sqrt(share)) for share in row]
        x = 0
        while x < len(depths):
            end = x
            while end < len(depths) and depths[end] == depths[x]:
                end += 1
            if depths[x]:
                paths.setdefault(depths[x], []).append(f"M{CELL * x} {CELL * y}h{CELL * (end - x)}v{CELL}H{CELL * x}z")
            x = end
    return [(round(level / LEVELS, 3), "".join(paths[level])) for level in sorted(paths)]


def reliability_drawing(found: Reliability, baseline: Reliability | None) -> ReliabilityDrawing:
    """The bins' points, their size by how many predictions they hold; the baseline's line behind."""
    most, bins = max(found.counts, default=0) or 1, len(found.counts)
    points = [
        (round(SIDE * stated, 1), round(SIDE * (1 - observed), 1), round(1.5 + 3.5 * math.sqrt(count / most), 1))
        for stated, observed, count in zip(found.stated, found.observed, found.counts, strict=True)
        if stated is not None and observed is not None
    ]
    width = SIDE / (bins or 1)
    said = [
        f"{100 * stated:.0f}%: {100 * observed:.0f}%"
        for stated, observed in zip(found.stated, found.observed, strict=True)
        if stated is not None and observed is not None
    ]
    return ReliabilityDrawing(
        line=_line(found),
        points=points,
        baseline="" if baseline is None else _line(baseline),
        bars=[
            (round(width * place + 0.5, 1), round(width - 1, 1), round(HISTOGRAM * count / most, 1))
            for place, count in enumerate(found.counts)
            if count
        ],
        alt=f"Stated and come true, of {plural(sum(found.counts), 'prediction')}: {', '.join(said)}.",
    )


def _line(found: Reliability) -> str:
    known = [
        f"{SIDE * stated:.1f} {SIDE * (1 - observed):.1f}"
        for stated, observed in zip(found.stated, found.observed, strict=True)
        if stated is not None and observed is not None
    ]
    return f"M{'L'.join(known)}" if known else ""
