"""A notebook as a page: text, code, and outputs if an executed copy is available."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def notebook_page(path: Path, *, executed: Path) -> str:
    """Return the page, with outputs of `executed` if `notebooks/run.py` ran the same cells."""
    cells = _cells(path)
    copy = _cells(executed) if executed.is_file() else []
    same = [_source(cell) for cell in copy] == [_source(cell) for cell in cells]
    parts = []
    for cell in copy if same else cells:
        if cell["cell_type"] == "markdown":
            parts.append(_source(cell))
        else:
            parts.append(f"```python\n{_source(cell)}\n```")
            parts += (shown for output in cell["outputs"] if same for shown in _shown(output))
    return "\n\n".join([*parts, f"*This page is the notebook `notebooks/{path.name}`.*\n"])


def _cells(path: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def _source(cell: Mapping[str, Any]) -> str:
    return "".join(cell["source"]).rstrip()


def _shown(output: Mapping[str, Any]) -> Iterator[str]:
    """Return images and text, without standard error (warnings of the notebook's kernel)."""
    data = output.get("data", {})
    if "image/png" in data:
        yield f"![](data:image/png;base64,{''.join(data['image/png']).replace(chr(10), '')})"
    elif "text/plain" in data:
        yield _as_block("".join(data["text/plain"]))
    elif output.get("name") == "stdout":
        yield _as_block("".join(output["text"]))


def _as_block(text: str) -> str:
    """Return an indented code block, which no text can end; the comment ends a paragraph or list before it."""
    lines = text.rstrip().splitlines()
    return "<!-- -->\n\n" + "".join(f"    {line}\n" if line else "\n" for line in lines)
