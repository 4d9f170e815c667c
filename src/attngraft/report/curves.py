"""Learning curves: a quantity by epoch, its mean over seeds and their range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attngraft.drawing.sheet import headed
from attngraft.report.scene import Scene, name_points, ruled
from attngraft.results.study import RunSummary, StudyResult
from attngraft.results.wording import baseline_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True)
class Band:
    """A quantity by epoch: mean over the seeds that have it, and the least and largest of them."""

    epochs: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def band(curves: Sequence[dict[float, float]]) -> Band | None:
    """Combine one mapping of epoch to value per seed; values that are not finite count as missing."""
    finite = [{epoch: value for epoch, value in curve.items() if math.isfinite(value)} for curve in curves]
    epochs = sorted({epoch for curve in finite for epoch in curve})
    if not epochs:
        return None
    columns = [[curve[epoch] for curve in finite if epoch in curve] for epoch in epochs]
    return Band(
        epochs=epochs,
        mean=[sum(column) / len(column) for column in columns],
        low=[min(column) for column in columns],
        high=[max(column) for column in columns],
    )


def by_epoch(run: RunSummary, key: str) -> dict[float, float]:
    return dict(zip(run.curve.get("epoch", []), run.curve.get(key, []), strict=False))


def curve_bands(result: StudyResult, key: str) -> list[Band | None]:
    """The band of `key` for every variant."""
    return [band([by_epoch(run, key) for run in variant.runs]) for variant in result.variants]


def difference_bands(result: StudyResult, key: str) -> list[Band | None]:
    """The band of every variant's difference to the baseline, paired by seed and epoch; None for the baseline."""
    baseline = baseline_of(result)
    base = {run.seed: by_epoch(run, key) for run in baseline.runs} if baseline else {}
    found: list[Band | None] = []
    for variant in result.variants:
        gaps = []
        for run in [] if variant.is_baseline else variant.runs:
            under = base.get(run.seed, {})
            gaps.append({epoch: v - under[epoch] for epoch, v in by_epoch(run, key).items() if epoch in under})
        found.append(band(gaps))
    return found


def draw_bands(axes: Axes, scene: Scene, bands: Sequence[Band | None], *, title: str, scale: float, zero: bool) -> None:
    """Means as lines, seeds' ranges as bands, names at the right ends; `zero` adds the baseline's level."""
    from matplotlib.ticker import MaxNLocator

    theme, ends = scene.theme, []
    if zero:
        axes.axhline(0, color=theme.baseline, linewidth=1.2)
    for (variant, look), found in zip(scene.dressed, bands, strict=True):
        if found is None:
            continue
        color = look.color(theme)
        axes.fill_between(found.epochs, found.low, found.high, color=color, alpha=0.13, linewidth=0)
        axes.plot(found.epochs, found.mean, color=color, linewidth=1.7, linestyle="--" if look.dashed else "-")
        axes.plot(
            found.epochs[-1:], found.mean[-1:], color=color, marker=look.marker, markersize=4.5, clip_on=False, zorder=3
        )
        ends.append((variant.name, look, found.epochs[-1], found.mean[-1]))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    ruled(axes.yaxis, scale)
    first, last = _epoch_range(bands)
    axes.set_xlim(first, max(last, first + 1))
    headed(axes, theme, title, below="epoch")
    name_points(axes, scene, ends)


def _epoch_range(bands: Sequence[Band | None]) -> tuple[float, float]:
    present = [found for found in bands if found is not None]
    return min(found.epochs[0] for found in present), max(found.epochs[-1] for found in present)
