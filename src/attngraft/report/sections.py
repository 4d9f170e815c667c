"""What a task says of each variant, variant beside variant, made ready for the page.

A study may have a hundred variants and a thousand classes, so tables are cut to `ROWS` rows: those that differ most from
the baseline. results.json has them all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from attngraft.report.diagrams import MatrixDrawing, ReliabilityDrawing, matrix_drawing, reliability_drawing
from attngraft.results.sections import Cell, Column, Section, Table
from attngraft.results.study import StudyResult
from attngraft.results.wording import ABSENT, minus, shown

ROWS = 100  #: of a table that are shown


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A table of finished text. The first column heads its rows; `numeric` says which of the others hold numbers."""

    head: list[str]
    numeric: list[bool]
    rows: list[list[str]]
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Group:
    """A compared column: the baseline's values and each other variant's difference to them."""

    title: str
    count: int  #: of columns: the baseline and the variants


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What variants are compared by, row by row: `fixed` columns, then for each group a column per variant."""

    fixed: list[str]
    groups: list[Group]
    variants: list[int]  #: places among the study's variants, in each group
    baseline: int | None  #: the place of that whose values are shown; None: all variants' values are
    rows: list[list[str]]
    caption: str


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one variant shows in a section."""

    place: int  #: among the study's variants
    numbers: list[tuple[str, str]]
    table: Shown | None = None
    matrix: MatrixDrawing | None = None
    reliability: ReliabilityDrawing | None = None


@dataclass(frozen=True, kw_only=True)
class SectionView:
    """Sections of one name."""

    anchor: str
    title: str
    note: str
    comparison: Comparison | None
    parts: list[Part] = field(default_factory=list)

    @property
    def drawn(self) -> bool:
        """Whether it has anything but tables."""
        return any(part.matrix or part.reliability or (part.numbers and not part.table) for part in self.parts)


def section_views(result: StudyResult) -> list[SectionView]:
    """The sections of all variants, those of one name together, in the order in which the task gave them."""
    names = dict.fromkeys(section.name for variant in result.variants for section in variant.sections)
    return [_view(result, name) for name in names]


def _view(result: StudyResult, name: str) -> SectionView:
    found = {
        place: section
        for place, variant in enumerate(result.variants)
        for section in variant.sections
        if section.name == name
    }
    baseline = next((place for place in found if result.variants[place].is_baseline), None)
    base = None if baseline is None else found[baseline]
    first = next(iter(found.values()))
    return SectionView(
        anchor=f"task-{name}",
        title=shown(first.title),
        note=shown(first.note),
        comparison=_comparison(found, baseline),
        parts=[_part(place, section, None if place == baseline else base) for place, section in found.items()],
    )


def _part(place: int, section: Section, base: Section | None) -> Part:
    matrix, reliable = section.matrix, section.reliability
    return Part(
        place=place,
        numbers=_numbers(section, base),
        table=None if section.table is None else _own(section.table, base.table if base else None),
        matrix=None if matrix is None else matrix_drawing(matrix),
        reliability=None if reliable is None else reliability_drawing(reliable, base.reliability if base else None),
    )


def _numbers(section: Section, base: Section | None) -> list[tuple[str, str]]:
    found = []
    for name, value in section.numbers.items():
        text = f"{100 * value:.2f} %"
        if base is not None and name in base.numbers:
            text += f" ({_signed(100 * (value - base.numbers[name]), 2)})"
        found.append((shown(name), text))
    return found


# --- tables -------------------------------------------------------------------------------------------------------


def _own(table: Table, base: Table | None) -> Shown:
    """A variant's own table, with its difference to the baseline beside each compared column."""
    rows, caption = _chosen(table, [table], base)
    head, numeric, columns = [], [], []
    for place, column in enumerate(table.columns):
        head.append(_titled(column))
        numeric.append(column.kind != "text")
        columns.append([_written(table.rows[row][place], column) for row in rows])
        if base is not None and column.role == "compared":
            values = _by_name(base, place)
            head.append("to baseline")
            numeric.append(True)
            columns.append([_change(table.rows[row][place], values.get(table.rows[row][0]), column) for row in rows])
    return Shown(
        head=head,
        numeric=numeric,
        rows=[list(row) for row in zip(*columns, strict=True)],
        caption=caption,
    )


def shown_table(table: Table, *, file: str) -> Shown:
    """A table that belongs to no variant, at most `ROWS` of its rows; `file` has all of them."""
    more = len(table.rows) - ROWS
    return Shown(
        head=[_titled(column) for column in table.columns],
        numeric=[column.kind != "text" for column in table.columns],
        rows=[
            [_written(cell, column) for cell, column in zip(row, table.columns, strict=True)]
            for row in table.rows[:ROWS]
        ],
        caption=f"The first {ROWS} of {len(table.rows):,} rows; all of them are in {file}." if more > 0 else "",
    )


def _comparison(found: dict[int, Section], baseline: int | None) -> Comparison | None:
    tables = {place: section.table for place, section in found.items() if section.table is not None}
    lead = tables.get(baseline if baseline is not None else next(iter(tables), -1))
    compared = [i for i, column in enumerate(lead.columns) if column.role == "compared"] if lead else []
    if lead is None or not compared or len(tables) < 2:
        return None
    others = [table for place, table in tables.items() if place != baseline]
    chosen, caption = _chosen(lead, others, lead if baseline is not None else None)
    common = [i for i, column in enumerate(lead.columns) if i == 0 or column.role == "common"]
    columns = [[_written(lead.rows[row][i], lead.columns[i]) for row in chosen] for i in common]
    for i in compared:
        for place, table in tables.items():
            values, own = _by_name(lead, i), _by_name(table, i)
            names = [lead.rows[row][0] for row in chosen]
            if baseline is None or place == baseline:
                columns.append([_written(own.get(name), lead.columns[i]) for name in names])
            else:
                columns.append([_change(own.get(name), values.get(name), lead.columns[i]) for name in names])
    return Comparison(
        fixed=[_titled(lead.columns[i]) for i in common],
        groups=[Group(title=_titled(lead.columns[i]), count=len(tables)) for i in compared],
        variants=list(tables),
        baseline=baseline,
        rows=[list(row) for row in zip(*columns, strict=True)],
        caption=caption,
    )


def _chosen(table: Table, others: Sequence[Table], base: Table | None) -> tuple[list[int], str]:
    """The rows of `table` that are shown, in its order, and what to say of them if these are not all.

    Where there are too many: those where `others` differ most from `base` in the first compared column; without a `base`
    those of the least value; without such a column the first ones.
    """
    places = list(range(len(table.rows)))
    if len(places) <= ROWS:
        return places, ""
    said = f"{ROWS} of {len(places):,} rows, {{}}; all of them are in results.json."
    column = next((i for i, each in enumerate(table.columns) if each.role == "compared"), None)
    if column is None:
        return places[:ROWS], said.format("the first ones")
    before = None if base is None else _by_name(base, column)
    after = [_by_name(each, column) for each in others]

    def weight(row: int) -> float:
        name, own = table.rows[row][0], table.rows[row][column]
        if before is None:
            return -float(own) if isinstance(own, int | float) else -math.inf
        gaps = [_gap(values.get(name), before.get(name)) for values in after]
        return max((abs(gap) for gap in gaps if gap is not None), default=-1.0)

    kept = sorted(sorted(places, key=weight, reverse=True)[:ROWS])
    return kept, said.format("the lowest ones" if before is None else "those that differ most")


def _by_name(table: Table, column: int) -> dict[Cell, Cell]:
    return {row[0]: row[column] for row in table.rows}


def _titled(column: Column) -> str:
    return shown(column.name) + (" %" if column.kind == "share" else "")


def _written(cell: Cell, column: Column) -> str:
    if cell is None:
        return ABSENT
    if isinstance(cell, str):
        return shown(cell)
    if column.kind == "share":
        return f"{100 * cell:.1f}"
    return f"{cell:,}" if column.kind == "count" else f"{cell:.4g}"


def _change(cell: Cell, before: Cell, column: Column) -> str:
    gap = _gap(cell, before)
    if gap is None:
        return ABSENT
    return _signed(100 * gap, 1) if column.kind == "share" else minus(f"{gap:+.4g}")


def _gap(cell: Cell, before: Cell) -> float | None:
    if not isinstance(cell, int | float) or not isinstance(before, int | float):
        return None
    return cell - before


def _signed(number: float, decimals: int) -> str:
    """With its sign; what rounds to zero has none."""
    text = f"{number:+.{decimals}f}"
    return minus(text if text.strip("+-0.") else text[1:])
