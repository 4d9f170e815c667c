"""A computed table, drawn for the terminal: the paper's numbers, ours beside them, and a mark."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from attngraft.papers.compute import Cell, TableResult
from attngraft.papers.schema import Column, Paper, Table

MARKS = {"agrees": "✓", "differs": "✗", "not computed": "", "from runs": "", "printed": ""}
ASCII_MARKS = {**MARKS, "agrees": "ok", "differs": "no"}
_NONE = "–"
_STYLES = {"agrees": "green", "differs": "red", "not computed": "dim", "from runs": "cyan", "printed": ""}


def render_table(paper: Paper, result: TableResult, *, ascii_only: bool = False) -> RenderableType:
    """`result` as a rich table with its explanations and the summary line below."""
    title = Text(f"{paper.id} {result.table.id}: {result.table.title}", style="bold")
    drawn = RichTable()
    drawn.add_column("variant", no_wrap=True)
    shown = {column.id: _beside(column, result) for column in result.table.columns}
    grouped = any(row.row.variant.startswith("+") for row in result.rows)
    for column in result.table.columns:
        subtitle = "\npaper  ours" if shown[column.id] else "\npaper" if any(shown.values()) else ""
        drawn.add_column(escape(column.title) + subtitle, justify="left" if shown[column.id] else "right", no_wrap=True)
    widths = {column.id: _widths(column.id, result) for column in result.table.columns if shown[column.id]}
    for index, row in enumerate(result.rows):
        if grouped and index and not row.row.variant.startswith("+"):
            drawn.add_section()
        drawn.add_row(
            escape(row.row.variant),
            *(_cell(row.cells.get(column.id), widths.get(column.id), ascii_only) for column in result.table.columns),
        )
    return Group(title, drawn, *_explanations(result), Text(result.summary, style="bold"))


def list_tables(paper: Paper) -> RenderableType:
    """What tables a paper has."""
    title = Text(f"{paper.id}: {paper.title}\n", style="bold").append(paper.source, style="not bold")
    drawn = RichTable()
    drawn.add_column("table", no_wrap=True)
    drawn.add_column("what")
    drawn.add_column("rows", justify="right")
    drawn.add_column("computed here", no_wrap=True)
    for table in paper.tables:
        drawn.add_row(table.id, escape(table.title), str(len(table.rows)), escape(_computed(table)))
    return Group(title, drawn, Text(paper.counting))


def _computed(table: Table) -> str:
    """The columns for which we have numbers of our own, or may have."""
    counted = [column.title for column in table.columns if column.count]
    measured = [column.title for column in table.columns if column.metric]
    return ", ".join([*counted, *(f"{title} (runs)" for title in measured)]) or "-"


def _beside(column: Column, result: TableResult) -> bool:
    """Whether the column shows our numbers beside the paper's."""
    from_runs = any(row.cells[column.id].verdict == "from runs" for row in result.rows if column.id in row.cells)
    return column.count is not None or from_runs


def _cell(cell: Cell | None, widths: tuple[int, int] | None, ascii_only: bool) -> Text:
    """The printed number, and ours in a place `widths` wide where the column has one."""
    if cell is None:
        return Text("")
    if widths is None:
        return Text(cell.printed)
    marks = ASCII_MARKS if ascii_only else MARKS
    printed, ours = cell.printed.rjust(widths[0]), format_ours(cell).rjust(widths[1])
    ours = ours.replace(_NONE, "-") if ascii_only else ours
    return Text(f"{printed}  ").append(f"{ours} {marks[cell.verdict]}".rstrip(), style=_STYLES[cell.verdict])


def _widths(column: str, result: TableResult) -> tuple[int, int]:
    """Widths of the paper's and of our numbers in a column."""
    cells = [row.cells[column] for row in result.rows if column in row.cells]
    return max(len("paper"), *(len(cell.printed) for cell in cells)), max(len(format_ours(cell)) for cell in cells)


def format_ours(cell: Cell) -> str:
    """Our number with two digits more than the paper's, so that the rounding can be seen; a dash where there is none."""
    digits = len(cell.printed.partition(".")[2])
    return _NONE if cell.ours is None else f"{cell.ours:.{digits + 2}f}"


def _explanations(result: TableResult) -> list[Text]:
    """Why cells differ or are missing, notes on readings, and where measured numbers are from."""
    lines: list[Text] = []
    titles = {column.id: column.title for column in result.table.columns}
    for verdict in ("differs", "not computed"):
        reasons: dict[str, dict[str, list[str]]] = {}  # why -> row -> columns
        for row in result.rows:
            for column, cell in row.cells.items():
                if cell.verdict == verdict:
                    reasons.setdefault(cell.why or "", {}).setdefault(row.label, []).append(titles[column])
        for why, rows in reasons.items():
            places = [f"{row} ({'; '.join(columns)})" if verdict == "differs" else row for row, columns in rows.items()]
            lines.append(Text(f"{_shorten(places)}: {why}", style=_STYLES[verdict]))
    lines += [Text(f"{row.label}: {row.row.note}") for row in result.rows if row.row.note]
    lines += [Text(note) for note in result.table.notes]
    return lines + _about_runs(result)


def _shorten(places: list[str], most: int = 4) -> str:
    rest = len(places) - most
    return ", ".join(places[:most]) + (f" and {rest} more" if rest > 0 else "")


def _about_runs(result: TableResult) -> list[Text]:
    lines = []
    if result.count("from runs"):
        trained = f"trained on {', '.join(result.data)}"
        lines.append(Text(f"Measured numbers of ours are the last epoch's, the mean over runs; these were {trained}."))
    if result.unmatched:
        lines.append(
            Text(f"Runs that are no row of this table (model, graft, teacher): {_shorten(list(result.unmatched))}")
        )
    return lines
