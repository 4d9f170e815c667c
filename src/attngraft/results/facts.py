"""Nested plain data (what a task says of its data, a host's arguments, an environment) made ready for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attngraft.results.wording import shown

LIST_WIDTH = 12  #: longer lists are cut short and say how much is missing


@dataclass(frozen=True, kw_only=True)
class Count:
    label: str
    counts: list[int]  #: one per column
    share: float  #: of the largest first count, in percent


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A named value: a `text`, a table of whole numbers with its `columns`, or `children`."""

    label: str
    text: str = ""
    columns: list[str] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    children: list[Fact] = field(default_factory=list)


def facts(data: Mapping[str, Any], *, counts: bool = False) -> list[Fact]:
    """One `Fact` per entry; mappings nest.

    With `counts`, mappings of names to whole numbers (class counts) become tables, side by side where several share their
    names (the counts of each split).
    """
    return [_fact(str(label), value, tables=counts) for label, value in data.items()]


def _fact(label: str, value: Any, *, tables: bool) -> Fact:
    label = shown(label).replace("_", " ")
    if not isinstance(value, Mapping):
        return Fact(label=label, text=_text(value))
    if not value:
        return Fact(label=label, text="none")
    if not tables:
        return Fact(label=label, children=facts(value))
    if _counted(value):
        return Fact(label=label, columns=[""], counts=_counts([value]))
    parts = list(value.values())
    if len(parts) > 1 and all(map(_counted, parts)) and all(part.keys() == parts[0].keys() for part in parts):
        return Fact(label=label, columns=[shown(name) for name in value], counts=_counts(parts))
    return Fact(label=label, children=facts(value, counts=True))


def _counted(value: Any) -> bool:
    """Whether `value` maps two names or more to whole numbers."""
    if not isinstance(value, Mapping) or len(value) < 2:
        return False
    return all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value.values())


def _counts(parts: Sequence[Mapping[Any, int]]) -> list[Count]:
    largest = max(parts[0].values()) or 1
    return [
        Count(label=shown(name), counts=[part[name] for part in parts], share=100 * n / largest)
        for name, n in parts[0].items()
    ]


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        parts = [_text(item) for item in value[:LIST_WIDTH]]
        missing = len(value) - len(parts)
        return ", ".join(parts) + (f" and {missing} more" if missing else "")
    if isinstance(value, Mapping):
        return ", ".join(f"{shown(key)}: {_text(item)}" for key, item in value.items())
    return shown(value)
