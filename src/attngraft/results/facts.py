"""Display of nested plain data on a page: facts about data, a host's arguments, an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attngraft.results.wording import shown

LIST_WIDTH = 12  #: lists with more items are truncated


@dataclass(frozen=True, kw_only=True)
class Count:
    label: str
    counts: list[int]  #: one count per column
    share: float  #: length of the bar: the first count in percent of the first column's maximum


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A named value: a `text`, a table of counts with its `columns`, or `children`."""

    label: str
    text: str = ""
    columns: list[str] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    children: list[Fact] = field(default_factory=list)


def facts(data: Mapping[str, Any], *, counts: bool = False) -> list[Fact]:
    """Return one `Fact` per entry; nested mappings become children.

    With `counts`, a mapping from names to integers, such as class counts, becomes a table. Several mappings with the same
    names, such as the class counts of each split, become columns of one table.
    """
    return [_fact(shown(label).replace("_", " "), value, tables=counts) for label, value in data.items()]


def _fact(label: str, value: Any, *, tables: bool) -> Fact:
    if not isinstance(value, Mapping):
        return Fact(label=label, text=_text(value))
    if not value:
        return Fact(label=label, text="none")
    parts = list(value.values())
    if tables and _is_counts(value):
        columns, parts = [""], [value]
    elif tables and len(parts) > 1 and all(_is_counts(part) and part.keys() == parts[0].keys() for part in parts):
        columns = [shown(name) for name in value]
    else:
        return Fact(label=label, children=facts(value, counts=tables))
    largest = max(parts[0].values()) or 1
    rows = [
        Count(label=shown(name), counts=[part[name] for part in parts], share=100 * count / largest)
        for name, count in parts[0].items()
    ]
    return Fact(label=label, columns=columns, counts=rows)


def _is_counts(value: Any) -> bool:
    """Return whether `value` maps at least two names to non-negative integers."""
    if not isinstance(value, Mapping) or len(value) < 2:
        return False
    return all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value.values())


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        text = ", ".join(_text(item) for item in value[:LIST_WIDTH])
        return text + (f" and {len(value) - LIST_WIDTH} more" if len(value) > LIST_WIDTH else "")
    if isinstance(value, Mapping):
        return ", ".join(f"{shown(key)}: {_text(item)}" for key, item in value.items())
    return shown(value)
