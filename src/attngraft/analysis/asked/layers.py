"""What analyses over layers share: names of layers on an axis, and tables of their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from attngraft.results.analysis import Line
from attngraft.results.sections import Cell, Column, Table


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


@dataclass(frozen=True, kw_only=True)
class Layers:
    """The axis of layers that several models share, by the names of their sites.

    Models whose sites are named alike but for numbers (`blocks.0.attn`, `blocks.3.attn`) share places by name: where one has
    no such site its curve has a gap. Models of unlike names (`blocks.3.attn`, `layers.0.blocks.1.attn`) lie over one
    another by position, and the axis has the names of those with most layers.
    """

    places: Mapping[str, int]  #: site -> its place on the axis
    ticks: list[str]

    @classmethod
    def of(cls, models: Iterable[Sequence[str]]) -> Layers:
        """Of the sites of each model, in its own order; sites that only some have stand where those models have them."""
        groups: list[list[Sequence[str]]] = []
        for sites in models:
            alike = [group for group in groups if any(_kinds(sites) & _kinds(each) for each in group)]
            groups = [group for group in groups if group not in alike]
            groups.append([*(each for group in alike for each in group), sites])
        axes = [_merged(group) for group in groups]
        return cls(
            places={site: place for axis in axes for place, site in enumerate(axis)},
            ticks=ticks(max(axes, key=len, default=[])),
        )

    def line(
        self,
        name: str,
        subject: int | None,
        values: Mapping[str, float | None],
        *,
        band: Mapping[str, tuple[float, float]] | None = None,
        dashed: bool = False,
    ) -> Line:
        """A curve of numbers by site, None between its ends where there is no such site; `band` is its least and largest."""
        by_place = {self.places[site]: value for site, value in values.items()}
        x = list(range(min(by_place, default=0), max(by_place, default=-1) + 1))
        around = {self.places[site]: each for site, each in (band or {}).items()}
        low, high = ([around[at][end] if at in around else None for at in x] for end in (0, 1))
        return Line(
            name=name,
            subject=subject,
            x=[float(at) for at in x],
            y=[by_place.get(at) for at in x],
            low=low if band else None,
            high=high if band else None,
            dashed=dashed,
        )

    def bounds(self, name: str, models: Iterable[Mapping[str, float | None]]) -> list[Line]:
        """One dotted line for each way in which a bound runs over the layers of the models."""
        lines = [self.line(name, None, values) for values in models]
        return [line for place, line in enumerate(lines) if line not in lines[:place]]


def _kinds(sites: Iterable[str]) -> set[str]:
    return {re.sub(r"\d+", "#", site) for site in sites}


def _merged(orders: Sequence[Sequence[str]]) -> list[str]:
    """Every site once; a new one stands behind that before it in its model, and behind its like with lower numbers."""
    axis: list[str] = []
    for order in sorted(orders, key=len, reverse=True):
        at = 0
        for site in order:
            if site in axis:
                at = axis.index(site) + 1
                continue
            while at < len(axis) and _kinds([axis[at]]) == _kinds([site]) and _numbers(axis[at]) < _numbers(site):
                at += 1
            axis.insert(at, site)
            at += 1
    return axis


def _numbers(site: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", site)]


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are there; None: there are none."""
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None


def table_of(names: Sequence[str], texts: int, rows: Iterable[Sequence[Cell]]) -> Table:
    """A table whose first `texts` columns hold text, the others numbers."""
    columns = [Column(name=name, kind="text" if place < texts else "number") for place, name in enumerate(names)]
    return Table(columns=columns, rows=[list(row) for row in rows])
