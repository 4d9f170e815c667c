"""Small pieces of Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A pipe table. Bars within backticks are no separators; others, and line breaks, are escaped."""
    lines = [_row(header), _row(["---"] * len(header)), *(_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", text.replace("\n", " "))
    return "".join(part if part.startswith("`") else part.replace("|", "&#124;") for part in parts)


def docstring(thing: object) -> str:
    """Its docstring without indentation; the one that `dataclass` makes up counts as none."""
    text = inspect.getdoc(thing) or ""
    return "" if re.match(rf"{getattr(thing, '__name__', '')}\(", text) else text
