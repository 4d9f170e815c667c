"""What analyses over layers share: names of layers on an axis, and tables of their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from attngraft.finding import Line
from attngraft.sections import Cell, Column, Table


def ticks(sites: Sequence[str]) -> list[str]:
    """Sites as an axis names them: what they have in common at their ends is left out (`blocks.3.attn`: `3`)."""
    parts = [site.split(".") for site in sites]
    if len(parts) < 2:
        return list(sites)
    head = _common(parts)
    tail = _common([part[head:][::-1] for part in parts])
    cut = [".".join(part[head : len(part) - tail]) for part in parts]
    return [
        re.sub(r"\.?(blocks|layers)\.", ".", each).strip(".") or site for each, site in zip(cut, sites, strict=True)
    ]


def captions(sites: Sequence[str]) -> list[str]:
    """Sites as pictures and rows name them: `layer 3`; one alone by its whole name."""
    return list(sites) if len(sites) < 2 else [f"layer {tick}" for tick in ticks(sites)]


def _common(parts: Sequence[Sequence[str]]) -> int:
    """How many words all begin with."""
    count = 0
    for words in zip(*parts, strict=False):
        if len(set(words)) > 1:
            break
        count += 1
    return min(count, min(len(part) for part in parts) - 1)


def layer_line(name: str, subject: int | None, values: Iterable[float | None], *, dashed: bool = False) -> Line:
    """A curve over layers 0, 1, ..."""
    y = list(values)
    return Line(name=name, subject=subject, x=[float(place) for place in range(len(y))], y=y, dashed=dashed)


def longest(by_subject: Mapping[int, Sequence[str]]) -> list[str]:
    """Names on the axis that all models share: those of the one with most layers."""
    return ticks(max(by_subject.values(), key=len, default=[]))


def table_of(names: Sequence[str], texts: int, rows: Iterable[Sequence[Cell]]) -> Table:
    """A table whose first `texts` columns hold text, the others numbers."""
    columns = [Column(name=name, kind="text" if place < texts else "number") for place, name in enumerate(names)]
    return Table(columns=columns, rows=[list(row) for row in rows])
