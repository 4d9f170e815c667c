"""The documentation's sources, and the blocks of code in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NOT_RUN = "<!-- not run"  #: stands above a block of Python that only shows something

_BLOCK = re.compile(r"(?ms)^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^ *```")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    code: str
    runs: bool


def written_pages() -> list[Path]:
    """README, CONTRIBUTING and every page of docs/, by name."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    """The page's blocks in these languages, in order."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        if found["language"] in languages:
            above = text[: found.start()].rstrip().rpartition("\n")[2]
            yield Block(
                page=page,
                line=text.count("\n", 0, found.start()) + 1,
                language=found["language"],
                code=re.sub(rf"(?m)^{found['indent']}", "", found["code"]),
                runs=not above.startswith(NOT_RUN),
            )
