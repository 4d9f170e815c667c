"""Task-specific results of all variants side by side, prepared for the page.

A study may have a hundred variants and a thousand classes, so tables show at most `ROWS` rows: those that differ most from
the baseline. results.json contains all rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from attngraft.drawing.panels import curves_drawing
from attngraft.drawing.reliability import matrix_drawing, reliability_drawing
from attngraft.drawing.sheet import inline_svg
from attngraft.drawing.theme import VariantStyle, variant_styles
from attngraft.report import texts
from attngraft.report.figures import drawn_variants
from attngraft.results.analysis import Curves, Line
from attngraft.results.sections import Cell, Column, Matrix, Section, Table
from attngraft.results.study import Interval, StudyResult, VariantResult
from attngraft.results.wording import ABSENT, minus, shown, signed

ROWS = 100  #: maximum number of rows of a table
NUMBERED = 12  #: maximum number of rows or columns of a matrix that is shown as a table of numbers
PAIRS = 8  #: number of off-diagonal entries to list for a larger matrix, largest first


@dataclass(frozen=True, kw_only=True)
class TableView:
    """A table of formatted text. The first column has row headings; `numeric` marks number columns."""

    head: list[str]
    numeric: list[bool]
    rows: list[list[str]]
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All variants side by side: `fixed` columns, then per compared column a group of variant columns."""

    fixed: list[str]
    groups: list[str]
    variants: list[int]  #: indices of the variants in each group
    baseline: int | None  #: index of the variant shown with values, others with differences; None: values for all
    rows: list[list[str]]
    caption: str
    text: bool = False  #: whether texts are compared
    intervals: bool = False  #: whether differences have intervals


@dataclass(frozen=True, kw_only=True)
class MatrixView:
    """A matrix as a table of shaded counts or, if large, as a drawing and a list of its largest entries."""

    rows: list[str]
    columns: list[str]
    axes: str
    alt: str
    cells: list[list[tuple[int, float, float]]]  #: count, share of its row, shade
    drawing: Markup | None
    pairs: list[tuple[str, str, int]]

    @property
    def upright(self) -> bool:
        """Whether to rotate the column names, because they would not fit in a card side by side."""
        return sum(min(len(name), 14) for name in self.columns) > 24


@dataclass(frozen=True, kw_only=True)
class VariantPart:
    """One variant's part of a section."""

    index: int  #: index of the variant
    numbers: list[tuple[str, str]]
    table: TableView | None
    matrix: MatrixView | None
    reliability: Markup | None


@dataclass(frozen=True, kw_only=True)
class SectionView:
    """The sections with the same name, of all variants."""

    anchor: str
    title: str
    note: str
    curves: list[Markup]
    comparison: Comparison | None
    parts: list[VariantPart]

    @property
    def drawn(self) -> bool:
        """Whether the section contains anything besides tables."""
        return any(part.matrix or part.reliability or (part.numbers and not part.table) for part in self.parts)


def section_views(result: StudyResult) -> list[SectionView]:
    """Return the sections of all variants, grouped by name, in the task's order."""
    styles, drawn = variant_styles(result), drawn_variants(result)
    views = []
    for name in dict.fromkeys(section.name for variant in result.variants for section in variant.sections):
        sections = {
            index: section
            for index, variant in enumerate(result.variants)
            for section in variant.sections
            if section.name == name
        }
        baseline = next((index for index in sections if result.variants[index].is_baseline), None)
        first = next(iter(sections.values()))
        parts = []
        for index, section in sections.items():
            base = None if baseline is None or index == baseline else sections[baseline]
            anchor, diagram = f"task-{name}-{index}", None
            if section.reliability is not None and index in drawn:
                bins, other = section.reliability, base.reliability if base else None
                diagram = inline_svg(
                    reliability_drawing(bins, other, role=styles[index].role, name=f"{anchor}-reliability")
                )
            parts.append(
                VariantPart(
                    index=index,
                    numbers=_numbers(section, base),
                    table=_own_table(section.table, base.table if base else None, result.variants[index])
                    if section.table
                    else None,
                    matrix=matrix_view(section.matrix, name=f"{anchor}-matrix") if section.matrix else None,
                    reliability=diagram,
                )
            )
        views.append(
            SectionView(
                anchor=f"task-{name}",
                title=shown(first.title),
                note=shown(first.note),
                curves=_curves(sections, baseline, result.variants, styles),
                comparison=_comparison(sections, baseline, result.variants),
                parts=parts,
            )
        )
    return views


def matrix_view(matrix: Matrix, *, name: str) -> MatrixView:
    """Prepare a matrix. Shades are square roots of row shares, to make rare cells visible."""
    small = max(len(matrix.rows), len(matrix.columns)) <= NUMBERED
    pairs = [
        (shown(row), shown(column), count)
        for row, counts in zip(matrix.rows, matrix.counts, strict=True)
        for column, count in zip(matrix.columns, counts, strict=True)
        if count and row != column
    ]
    pairs = sorted(pairs, key=lambda pair: -pair[2])[:PAIRS]
    axes = f"{shown(matrix.row_axis)} by row, {shown(matrix.column_axis)} by column"
    most = "; ".join(f"{row} as {column}: {count}" for row, column, count in pairs[:3]) or "none"
    alt = f"{axes}. Most frequent off the diagonal: {most}."
    cells = []
    for counts in matrix.counts if small else []:
        shares = [count / (sum(counts) or 1) for count in counts]
        cells.append([(n, share, round(math.sqrt(share), 3)) for n, share in zip(counts, shares, strict=True)])
    return MatrixView(
        rows=[shown(name) for name in matrix.rows],
        columns=[shown(name) for name in matrix.columns],
        axes=axes,
        alt=alt,
        cells=cells,
        drawing=None if small else inline_svg(matrix_drawing(matrix, alt=alt, name=name)),
        pairs=[] if small else pairs,
    )


def _numbers(section: Section, base: Section | None) -> list[tuple[str, str]]:
    numbers = []
    for name, value in section.numbers.items():
        text = f"{100 * value:.2f} %"
        if base is not None and name in base.numbers:
            text += f" ({signed(100 * (value - base.numbers[name]), 2)})"
        numbers.append((shown(name), text))
    return numbers


# --- tables -----------------------------------------------------------------------------------------------------------


def table_view(table: Table, *, file: str) -> TableView:
    """Return the first `ROWS` rows of a table; the caption refers to `file` for all rows."""
    more = len(table.rows) > ROWS
    return TableView(
        head=[_heading(column) for column in table.columns],
        numeric=[column.kind != "text" for column in table.columns],
        rows=[[_format(cell, c) for cell, c in zip(row, table.columns, strict=True)] for row in table.rows[:ROWS]],
        caption=f"The first {ROWS} of {len(table.rows):,} rows; all of them are in {file}." if more else "",
    )


def _own_table(table: Table, base: Table | None, variant: VariantResult) -> TableView:
    """Return a table of one variant, with the difference to the baseline next to each compared column."""
    rows, caption = _selected(table, [table], base)
    head, numeric, columns = [], [], []
    for place, column in enumerate(table.columns):
        head.append(_heading(column))
        numeric.append(column.kind != "text")
        columns.append([_format(table.rows[row][place], column) for row in rows])
        if base is not None and column.role == "compared" and column.kind != "text":
            before = _by_name(base, place)
            head.append("to baseline")
            numeric.append(True)
            intervals = _intervals(table, column, variant)
            cells = [(table.rows[row][place], table.rows[row][0]) for row in rows]
            columns.append([_change(cell, before.get(name), column, intervals.get(name)) for cell, name in cells])
            if intervals:
                head.append("95% interval")
                numeric.append(True)
                columns.append([_bounds(intervals.get(name), column) for _, name in cells])
    return TableView(
        head=head, numeric=numeric, rows=[list(row) for row in zip(*columns, strict=True)], caption=caption
    )


def _tables(sections: dict[int, Section], baseline: int | None) -> tuple[dict[int, Table], Table | None, list[int]]:
    """Return each variant's table, the table with the order of the rows, and the indices of its compared columns."""
    tables = {index: section.table for index, section in sections.items() if section.table is not None}
    lead = tables.get(baseline if baseline is not None else next(iter(tables), -1))
    return tables, lead, [i for i, column in enumerate(lead.columns) if column.role == "compared"] if lead else []


def _comparison(
    sections: dict[int, Section], baseline: int | None, variants: Sequence[VariantResult]
) -> Comparison | None:
    tables, lead, compared = _tables(sections, baseline)
    if lead is None or not compared or len(tables) < 2:
        return None
    others = [table for index, table in tables.items() if index != baseline]
    if text := lead.columns[compared[0]].kind == "text":
        rows, caption = _texts_selected(lead, others, compared[0]), texts.CAPTION if baseline is not None else ""
    else:
        rows, caption = _selected(lead, others, lead if baseline is not None else None)
    names = [lead.rows[row][0] for row in rows]
    common = [i for i, column in enumerate(lead.columns) if i == 0 or column.role == "common"]
    columns: list[list[str]] = [[_format(lead.rows[row][i], lead.columns[i]) for row in rows] for i in common]
    for i in compared:
        before, column = _by_name(lead, i), lead.columns[i]
        for index, table in tables.items():
            values = _by_name(table, i)
            if baseline is None or index == baseline:
                columns.append([_format(values.get(name), column) for name in names])
            elif text:
                columns.append([texts.marked(str(values.get(name, "")), str(before[name])) for name in names])
            else:
                intervals = _intervals(table, column, variants[index])
                changes = [_change(values.get(name), before.get(name), column, intervals.get(name)) for name in names]
                if intervals:
                    changes = [
                        Markup("{} <small>{}</small>").format(change, _bounds(intervals.get(name), column))
                        for change, name in zip(changes, names, strict=True)
                    ]
                columns.append(changes)
    return Comparison(
        fixed=[_heading(lead.columns[i]) for i in common],
        groups=[_heading(lead.columns[i]) for i in compared],
        variants=list(tables),
        baseline=baseline,
        rows=[list(row) for row in zip(*columns, strict=True)],
        caption=caption,
        text=text,
        intervals=any(
            lead.columns[i].parts_of in variants[index].part_differences for i in compared for index in tables
        ),
    )


def _curves(
    sections: dict[int, Section],
    baseline: int | None,
    variants: Sequence[VariantResult],
    styles: Sequence[VariantStyle],
) -> list[Markup]:
    """Draw each compared column of an ordered table, with a curve per variant."""
    tables, lead, compared = _tables(sections, baseline)
    if lead is None or not lead.ordered:
        return []
    names = [row[0] for row in lead.rows]
    reference = next((index for index, variant in enumerate(variants) if variant.is_baseline), None)
    drawn = []
    for i in compared:
        column, lines = lead.columns[i], []
        for index, table in tables.items():
            values = [_number(_by_name(table, i).get(name), column) for name in names]
            line = Line(
                name=variants[index].name,
                subject=index,
                x=[float(x) for x in range(len(names))],
                y=values,
                dashed=styles[index].dashed,
            )
            lines.append(line)
        panel = Curves(
            title=_heading(column), x_axis=shown(lead.columns[0].name), lines=lines, ticks=[str(name) for name in names]
        )
        name = f"task-{next(iter(sections.values())).name}-curves-{i}"
        drawn.append(inline_svg(curves_drawing(panel, baseline=reference, name=name)))
    return drawn


def _texts_selected(table: Table, others: Sequence[Table], column: int) -> list[int]:
    by_name = [_by_name(each, column) for each in others]
    before = [str(row[column]) for row in table.rows]
    return texts.spread_rows(before, [[str(each.get(row[0], "")) for row in table.rows] for each in by_name])


def _selected(table: Table, others: Sequence[Table], base: Table | None) -> tuple[list[int], str]:
    """Return the indices of at most `ROWS` rows to show, in order, and a caption if rows are omitted.

    Rows are chosen by the first compared column: those where `others` differ most from `base` or, without `base`, those
    with the lowest values. Without a compared column, the first rows are chosen.
    """
    rows = list(range(len(table.rows)))
    if len(rows) <= ROWS:
        return rows, ""
    caption = f"{ROWS} of {len(rows):,} rows, {{}}; all of them are in results.json."
    column = next((i for i, each in enumerate(table.columns) if each.role == "compared"), None)
    if column is None:
        return rows[:ROWS], caption.format("the first ones")
    before = None if base is None else _by_name(base, column)
    after = [_by_name(each, column) for each in others]

    def weight(row: int) -> float:
        name, value = table.rows[row][0], table.rows[row][column]
        if before is None:
            return -float(value) if isinstance(value, int | float) else -math.inf
        gaps = [_gap(values.get(name), before.get(name)) for values in after]
        return max((abs(gap) for gap in gaps if gap is not None), default=-1.0)

    kept = sorted(sorted(rows, key=weight, reverse=True)[:ROWS])
    return kept, caption.format("those with the lowest values" if before is None else "those that differ most")


def _by_name(table: Table, column: int) -> dict[Cell, Cell]:
    return {row[0]: row[column] for row in table.rows}


def _heading(column: Column) -> str:
    return shown(column.name) + (" %" if column.kind == "share" else "")


def _format(cell: Cell, column: Column) -> str:
    if cell is None:
        return ABSENT
    if isinstance(cell, str):
        return shown(cell)
    if column.kind == "share":
        return f"{100 * cell:.1f}"
    return f"{cell:,}" if column.kind == "count" else f"{cell:.4g}"


def _change(cell: Cell, before: Cell, column: Column, interval: Interval | None = None) -> str:
    """Format a difference to the baseline; with an interval, over the common seeds."""
    gap = _gap(cell, before) if interval is None else interval.point
    if gap is None:
        return ABSENT
    return signed(100 * gap, 1) if column.kind == "share" else minus(f"{gap:+.4g}")


def _bounds(interval: Interval | None, column: Column) -> str:
    if interval is None:
        return ""
    return f"{_change(interval.low, 0, column)} to {_change(interval.high, 0, column)}"


def _intervals(table: Table, column: Column, variant: VariantResult) -> dict[Cell, Interval | None]:
    """Return the intervals of a variant's differences in a column, by the names of the rows; empty if there are none."""
    found = variant.part_differences.get(column.parts_of, [])
    return {row[0]: interval for row, interval in zip(table.rows, found, strict=False)}


def _number(cell: Cell, column: Column) -> float | None:
    """Return a number in the unit in which it is displayed."""
    if not isinstance(cell, int | float):
        return None
    return 100 * cell if column.kind == "share" else cell


def _gap(cell: Cell, before: Cell) -> float | None:
    if not isinstance(cell, int | float) or not isinstance(before, int | float):
        return None
    return cell - before
