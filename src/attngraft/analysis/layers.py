"""Layer axis shared by several models, and short names of layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from attngraft.results.analysis import Curves, Line


def ticks(sites: Sequence[str]) -> list[str]:
    """Return tick labels of sites, without their common prefix and suffix (`3` for `blocks.3.attn`)."""
    parts = [site.split(".") for site in sites]
    if len(parts) < 2:
        return list(sites)
    head = _common_prefix(parts)
    tail = _common_prefix([part[head:][::-1] for part in parts])
    cut = [".".join(part[head : len(part) - tail]) for part in parts]
    return [
        re.sub(r"\.?(blocks|layers)\.", ".", each).strip(".") or site for each, site in zip(cut, sites, strict=True)
    ]


def captions(sites: Sequence[str]) -> list[str]:
    """Return captions of sites, such as `layer 3`; the caption of a single site is its full name."""
    return list(sites) if len(sites) < 2 else [f"layer {tick}" for tick in ticks(sites)]


def _common_prefix(parts: list[list[str]]) -> int:
    """Return the number of leading words that all sites share, excluding the last word."""
    shared = takewhile(lambda words: len(set(words)) == 1, zip(*parts, strict=False))
    return min(len(list(shared)), min(map(len, parts)) - 1)


@dataclass(frozen=True, kw_only=True)
class LayerAxis:
    """Layer axis shared by several models.

    Models with site names that differ only in numbers (`blocks.0.attn`, `blocks.3.attn`) are aligned by name, with gaps for
    missing sites. Models with different names (`blocks.3.attn`, `layers.0.blocks.1.attn`) are aligned by position, and the
    tick labels are from the models with the most layers.
    """

    positions: Mapping[str, int]  #: site -> position on the axis
    ticks: list[str]

    @classmethod
    def of(cls, models: Iterable[Sequence[str]]) -> LayerAxis:
        """Create the axis from the sites of each model, in the model's order."""
        groups: list[list[Sequence[str]]] = []
        for sites in models:
            alike = [group for group in groups if any(_patterns(sites) & _patterns(each) for each in group)]
            groups = [group for group in groups if group not in alike]
            groups.append([*(each for group in alike for each in group), sites])
        axes = [_merged(group) for group in groups]
        return cls(
            positions={site: position for axis in axes for position, site in enumerate(axis)},
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
        """Return a curve of values by site, with gaps for missing sites.

        `band` contains the bounds (low, high) of a band around the curve, by site.
        """
        by_position = {self.positions[site]: value for site, value in values.items()}
        x = list(range(min(by_position, default=0), max(by_position, default=-1) + 1))
        bands = {self.positions[site]: each for site, each in (band or {}).items()}
        low, high = ([bands[at][end] if at in bands else None for at in x] for end in (0, 1))
        return Line(
            name=name,
            subject=subject,
            x=[float(at) for at in x],
            y=[by_position.get(at) for at in x],
            low=low if band else None,
            high=high if band else None,
            dashed=dashed,
        )

    def curves(self, title: str, lines: list[Line], *, y_axis: str = "") -> Curves:
        """Return a panel of lines over the axis."""
        return Curves(title=title, lines=lines, x_axis="layer", y_axis=y_axis, ticks=self.ticks)

    def bounds(self, name: str, models: Iterable[Mapping[str, float | None]]) -> list[Line]:
        """Return a dotted reference line for each model from its bound by site; equal lines are merged."""
        lines = [self.line(name, None, values) for values in models]
        return [line for index, line in enumerate(lines) if line not in lines[:index]]


def _patterns(sites: Iterable[str]) -> set[str]:
    return {re.sub(r"\d+", "#", site) for site in sites}


def _merged(orders: Sequence[Sequence[str]]) -> list[str]:
    """Merge the sites of several models in their order; sites that differ only in numbers are sorted."""
    axis: list[str] = []
    for order in sorted(orders, key=len, reverse=True):
        at = 0
        for site in order:
            if site in axis:
                at = axis.index(site) + 1
                continue
            while at < len(axis) and _patterns([axis[at]]) == _patterns([site]) and _numbers(axis[at]) < _numbers(site):
                at += 1
            axis.insert(at, site)
            at += 1
    return axis


def _numbers(site: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", site)]
