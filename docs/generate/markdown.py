"""Helpers for Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a pipe table. Bars outside backticks, and line breaks, are escaped."""
    lines = [_row(header), _row(["---"] * len(header)), *(_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", text.replace("\n", " "))
    return "".join(part if part.startswith("`") else part.replace("|", "&#124;") for part in parts)


def docstring(thing: object) -> str:
    """Return the docstring without indentation; empty for the one that `dataclass` generates."""
    text = inspect.getdoc(thing) or ""
    return "" if re.match(rf"{getattr(thing, '__name__', '')}\(", text) else text
