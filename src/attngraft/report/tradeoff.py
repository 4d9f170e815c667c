"""Accuracy against cost: where each variant stands on both, with what is uncertain about either."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attngraft.drawing.sheet import headed
from attngraft.report.scene import STEPS, Scene, name_points, ruled
from attngraft.results.study import Cost, Interval, StudyResult
from attngraft.results.wording import metric_format

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One kind of cost: how it is called and where it stands in `Cost`."""

    title: str
    of: Callable[[Cost], Interval | float | None]


COST_AXES = {
    "parameters": Axis(title="parameters", of=lambda cost: cost.parameters_ratio),
    "macs": Axis(title="multiply-adds", of=lambda cost: cost.macs_ratio),
    "train_time": Axis(title="training time", of=lambda cost: cost.train_time_ratio),
    "inference_time": Axis(title="inference time", of=lambda cost: cost.inference_time_ratio),
    "memory": Axis(title="peak memory", of=lambda cost: cost.memory_ratio),
}


def cost_points(result: StudyResult, axis: Axis) -> list[Interval | None]:
    """Each variant's ratio on this axis; a count or a single measurement is an interval without width."""
    found: list[Interval | None] = []
    for variant in result.variants:
        ratio = axis.of(variant.cost) if variant.cost is not None else None
        if isinstance(ratio, float | int):
            ratio = Interval(point=float(ratio), low=float(ratio), high=float(ratio))
        measured = result.metric in variant.last and ratio is not None and math.isfinite(ratio.point)
        found.append(ratio if measured else None)
    return found


def draw_cost(axes: Axes, scene: Scene, points: Sequence[Interval | None], *, axis: Axis) -> None:
    """The primary metric (mean, deviation over seeds as bars) against a ratio to the baseline (interval as bars)."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    theme, result, ends = scene.theme, scene.result, []
    axes.axvline(1, color=theme.baseline, linewidth=0.8, linestyle=(0, (2, 3)))
    for (variant, look), ratio in zip(scene.dressed, points, strict=True):
        if ratio is None:
            continue
        color, spread_ = look.color(theme), variant.last[result.metric]
        axes.errorbar(
            ratio.point,
            spread_.mean,
            xerr=[[ratio.point - ratio.low], [ratio.high - ratio.point]] if ratio.high > ratio.low else None,
            yerr=spread_.deviation,
            color=color,
            marker=look.marker,
            markersize=6.5,
            markeredgecolor=theme.surface,
            markeredgewidth=0.8,
            elinewidth=1.1,
        )
        ends.append((variant.name, look, ratio.point, spread_.mean))
    present = [ratio for ratio in points if ratio is not None]
    # a window of at least a tenth, so that a thousandth more of something does not look like much
    low, high = min(0.97, *(r.low for r in present)), max(1.07, *(r.high for r in present))
    axes.set_xlim(low - 0.06 * (high - low), high + 0.06 * (high - low))
    axes.margins(y=0.12)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=STEPS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}×"))
    style = metric_format(result)
    ruled(axes.yaxis, style.scale)
    headed(axes, theme, f"{style.column} by {axis.title}", below="ratio to the baseline")
    name_points(axes, scene, ends, leader=(0, (1, 2)))
