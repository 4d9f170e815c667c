"""Rendering of computed tables for the terminal: the paper's number, our number, and a mark."""

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from attngraft.papers.compute import Cell, TableResult
from attngraft.papers.schema import Paper, PaperColumn

MARKS = {"agrees": "✓", "differs": "✗", "not computed": "", "from runs": "", "printed": "", "not printed": ""}
ASCII_MARKS = {**MARKS, "agrees": "ok", "differs": "no"}
_NONE = "–"
_MAX_NAMES = 4  #: maximum number of rows or runs to list in a line below the table
_STYLES = {
    "agrees": "green",
    "differs": "red",
    "not computed": "dim",
    "from runs": "cyan",
    "printed": "",
    "not printed": "",
}


def render_table(paper: Paper, result: TableResult, *, ascii_only: bool = False) -> RenderableType:
    """Render `result` as a rich table, followed by explanations and a summary line."""
    title = Text(f"{paper.id} {result.table.id}: {result.table.title}", style="bold")
    drawn = RichTable()
    drawn.add_column("variant", no_wrap=True)
    shown = {column.id: _compared(column, result) for column in result.table.columns}
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
    """Render the list of a paper's tables."""
    title = Text(f"{paper.id}: {paper.title}\n", style="bold").append(paper.source, style="not bold")
    drawn = RichTable()
    drawn.add_column("table", no_wrap=True)
    drawn.add_column("title")
    drawn.add_column("rows", justify="right")
    drawn.add_column("computed here", no_wrap=True)
    for table in paper.tables:
        counted = [column.title for column in table.columns if column.count]
        measured = [f"{column.title} (runs)" for column in table.columns if column.metric]
        computed = ", ".join([*counted, *measured])
        drawn.add_row(table.id, escape(table.title), str(len(table.rows)), escape(computed or "-"))
    return Group(title, drawn, Text(paper.counting))


def _compared(column: PaperColumn, result: TableResult) -> bool:
    """Return whether the column shows our numbers next to the paper's."""
    from_runs = any(row.cells[column.id].verdict == "from runs" for row in result.rows if column.id in row.cells)
    return column.count is not None or from_runs


def _cell(cell: Cell | None, widths: tuple[int, int] | None, ascii_only: bool) -> Text:
    """Return the printed number, followed by our number if the column shows both (`widths` is not None)."""
    if cell is None:
        return Text("")
    printed = cell.printed.replace("±", "+-") if ascii_only else cell.printed
    if widths is None:
        return Text(printed)
    marks = ASCII_MARKS if ascii_only else MARKS
    printed, ours = printed.rjust(widths[0]), format_ours(cell).rjust(widths[1])
    ours = ours.replace(_NONE, "-") if ascii_only else ours
    return Text(f"{printed}  ").append(f"{ours} {marks[cell.verdict]}".rstrip(), style=_STYLES[cell.verdict])


def _widths(column: str, result: TableResult) -> tuple[int, int]:
    """Return the maximum widths of the paper's numbers and of our numbers in a column."""
    cells = [row.cells[column] for row in result.rows if column in row.cells]
    return max(len("paper"), *(len(cell.printed) for cell in cells)), max(len(format_ours(cell)) for cell in cells)


def format_ours(cell: Cell) -> str:
    """Format our number with two more decimals than the printed number; a dash if missing."""
    digits = len(cell.printed.partition(" ")[0].partition(".")[2])  # of "60.61 ± 1.11" those of the mean
    return _NONE if cell.ours is None else f"{cell.ours:.{digits + 2}f}"


def _explanations(result: TableResult) -> list[Text]:
    """Return the lines below the table: reasons for cells that differ or are missing, notes, and data."""
    lines: list[Text] = []
    titles = {column.id: column.title for column in result.table.columns}
    for verdict in ("differs", "not computed"):
        reasons: dict[str, dict[str, list[str]]] = {}  # why -> row -> columns
        for row in result.rows:
            for column, cell in row.cells.items():
                if cell.verdict == verdict:
                    reasons.setdefault(cell.why or "", {}).setdefault(row.label, []).append(titles[column])
        for why, rows in reasons.items():
            where = [f"{row} ({'; '.join(columns)})" if verdict == "differs" else row for row, columns in rows.items()]
            lines.append(Text(f"{_shorten(where)}: {why}", style=_STYLES[verdict]))
    lines += [Text(f"{row.label}: {row.row.note}") for row in result.rows if row.row.note]
    lines += [Text(note) for note in result.table.notes]
    if result.count("from runs"):
        data = ", ".join(result.data)
        lines.append(Text(f"Our measured numbers are last-epoch means over runs trained on {data}."))
    if result.unmatched:
        names = _shorten(list(result.unmatched))
        lines.append(Text(f"Runs that match no row of this table (model, graft, teacher): {names}"))
    return lines


def _shorten(names: list[str]) -> str:
    rest = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")
