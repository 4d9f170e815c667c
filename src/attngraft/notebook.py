"""Output in notebooks: tables for `_repr_html_`, and pages."""

import html
import sys
import webbrowser
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from attngraft.errors import UsageError

MOST_ROWS = 20
_HEIGHT = 640  #: of a page below a cell, in pixels


def html_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[object]], *, notes: Iterable[str] = (), rest: str = ""
) -> str:
    """Return an HTML table without scripts, with all text escaped.

    Args:
        notes: lines below the table.
        rest: where to find the rows after the first `MOST_ROWS`, which are left out.
    """

    def line(cells: Sequence[object], tag: str) -> str:
        return "".join(f'<{tag} style="text-align:left">{html.escape(str(cell))}</{tag}>' for cell in cells)

    shown = [f"<tr>{line(row, 'td')}</tr>" for row in rows[:MOST_ROWS]]
    left_out = [f"and {len(rows) - MOST_ROWS} more rows{rest}"] if len(rows) > MOST_ROWS else []
    below = "<br>".join(html.escape(note) for note in (*left_out, *notes))
    return (
        f"<div><b>{html.escape(title)}</b><table><thead><tr>{line(header, 'th')}</tr></thead>"
        f"<tbody>{''.join(shown)}</tbody></table>{below}</div>"
    )


def show_page(page: Path) -> None:
    """Show a self-contained HTML page: in a notebook below the cell, elsewhere in the web browser.

    Raises:
        UsageError: there is no web browser.
    """
    shell = _notebook_shell()
    if shell is not None:
        content = html.escape(page.read_text(encoding="utf-8"))
        frame = f'<iframe srcdoc="{content}" sandbox="allow-scripts allow-downloads allow-popups"'
        style = f'style="width:100%;height:{_HEIGHT}px;border:0"'
        shell.display_pub.publish({"text/html": f"<div>{frame} {style}></iframe></div>", "text/plain": str(page)})
    elif not webbrowser.open(page.resolve().as_uri()):
        raise UsageError(f"no web browser was found; open {page.resolve()}")


def _notebook_shell() -> Any:
    """Return IPython's shell if a kernel runs it, as in notebooks; otherwise None."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell if hasattr(shell, "kernel") else None
