"""What each panel shows. A panel draws on given axes and knows nothing of files, pages or its neighbors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attngraft.report.sheet import LINE_HEIGHT, TEXT_SIZE, headed, size_in_points, spread
from attngraft.report.theme import Look, Theme, looks
from attngraft.report.wording import MetricFormat, baseline_of, metric_format, minus, shorten
from attngraft.study.result import Cost, Interval, RunSummary, StudyResult, VariantResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LineStyle = str | tuple[float, tuple[float, ...]]

NAME_WIDTH = 22  #: characters of a variant's name that a plot has room for
STEPS = (1, 2, 5, 10)  #: ticks that read easily
VERDICT_SIGNS = {"better": "▲", "worse": "▼", "inside the noise": "≈"}


@dataclass(frozen=True)
class Scene:
    """A study in one theme."""

    result: StudyResult
    theme: Theme

    @property
    def dressed(self) -> list[tuple[VariantResult, Look]]:
        return list(zip(self.result.variants, looks(self.result), strict=True))


@dataclass(frozen=True, kw_only=True)
class Band:
    """A quantity by epoch: mean over the seeds that have it, and the least and largest of them."""

    epochs: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


# --- learning curves ----------------------------------------------------------------------------------------------


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


def gain_bands(result: StudyResult, key: str) -> list[Band | None]:
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


def draw_bands(axes: Axes, scene: Scene, bands: Sequence[Band | None], *, title: str, zero: bool = False) -> None:
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
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=STEPS))
    first, last = _epoch_range(bands)
    axes.set_xlim(first, max(last, first + 1))
    headed(axes, theme, title, below="epoch")
    name_points(axes, scene, ends)


def _epoch_range(bands: Sequence[Band | None]) -> tuple[float, float]:
    present = [found for found in bands if found is not None]
    return min(found.epochs[0] for found in present), max(found.epochs[-1] for found in present)


def name_points(
    axes: Axes, scene: Scene, points: Sequence[tuple[str, Look, float, float]], *, leader: LineStyle = "-"
) -> None:
    """The names of points, in the right margin, each tied to its point by a thin line of its color."""
    axes.set_ylim(axes.get_ylim())
    width, height = size_in_points(axes)
    to_axes = axes.transData + axes.transAxes.inverted()
    targets = [float(to_axes.transform((x, y))[1]) for _, _, x, y in points]
    heights = spread(targets, LINE_HEIGHT / height, low=0.0, high=1.0)
    for (name, look, x, y), level in zip(points, heights, strict=True):
        color = look.color(scene.theme)
        axes.annotate(
            shorten(name, NAME_WIDTH),
            xy=(x, y),
            xytext=(1 + 17 / width, level),
            textcoords="axes fraction",
            color=scene.theme.ink,
            fontsize=TEXT_SIZE - 0.5,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": color,
                "linestyle": leader,
                "linewidth": 0.8,
                "relpos": (0, 0.5),
                "shrinkB": 4,
            },
        )


def names_margin(result: StudyResult) -> float:
    """Inches that the longest name needs in the right margin."""
    longest = max((len(shorten(variant.name, NAME_WIDTH)) for variant in result.variants), default=0)
    return 0.36 + 0.076 * longest


# --- accuracy against cost ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One kind of cost: how it is called and where it stands in `Cost`."""

    title: str
    of: Callable[[Cost], Interval | float | None]


COST_AXES = {
    "parameters": Axis(title="parameters", of=lambda cost: cost.parameters_ratio),
    "macs": Axis(title="multiply-adds", of=lambda cost: cost.macs_ratio),
    "train_time": Axis(title="training step time", of=lambda cost: cost.train_time_ratio),
    "inference_time": Axis(title="inference time", of=lambda cost: cost.inference_time_ratio),
    "memory": Axis(title="peak training memory", of=lambda cost: cost.memory_ratio),
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
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=STEPS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}×"))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=STEPS))
    headed(axes, theme, f"{metric_format(result).label} against {axis.title}", below="ratio to the baseline")
    name_points(axes, scene, ends, leader=(0, (1, 2)))


# --- differences --------------------------------------------------------------------------------------------------


def difference_range(result: StudyResult) -> tuple[float, float]:
    """The range in which differences are drawn: zero, all points and bootstrap intervals, and t-intervals as far as
    three times that; with two seeds a t-interval can be so wide that nothing else would be seen."""
    found = [variant.difference for variant in result.variants if variant.difference is not None]
    inner = [bound for d in found for bound in (d.mean, d.bootstrap.low, d.bootstrap.high)]
    outer = [bound for d in found if d.t is not None for bound in (d.t.low, d.t.high)]
    reach = max((abs(bound) for bound in inner), default=0.0) or 1.0
    bounds = [0.0, *inner, *(max(-3 * reach, min(3 * reach, bound)) for bound in outer)]
    pad = 0.06 * ((max(bounds) - min(bounds)) or reach)
    return min(bounds) - pad, max(bounds) + pad


def draw_forest(axes: Axes, scene: Scene) -> None:
    """A row per compared variant: the point, the bootstrap interval (thick) and the t-interval (thin), the verdict."""
    theme, result = scene.theme, scene.result
    style = metric_format(result)
    rows = [(variant, look) for variant, look in scene.dressed if variant.difference is not None]
    low, high = difference_range(result)
    axes.set_xlim(low, high)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=theme.line, linewidth=0.6)
    axes.axvline(0, color=theme.baseline, linewidth=1.2)
    axes.set_yticks([])
    for row, (variant, look) in enumerate(rows):
        _forest_row(axes, scene, row, variant, look, style)
    unit = f" ({style.points})" if style.points else ""
    headed(axes, theme, f"difference to the baseline, {style.label}{unit}")
    key = "bar: bootstrap 95%" + ("    line: t 95%" if any(v.difference.t for v, _ in rows if v.difference) else "")
    toward = ("worse", "better") if result.higher_is_better else ("better", "worse")
    notes = ((0, f"← {toward[0]}", "left"), (0.5, key, "center"), (1, f"{toward[1]} →", "right"))
    for place, text, align in notes:
        axes.annotate(
            text,
            xy=(place, 0),
            xytext=(0, -26),
            xycoords="axes fraction",
            textcoords="offset points",
            ha=align,
            color=theme.muted,
            fontsize=TEXT_SIZE - 0.5,
        )


def _forest_row(
    axes: Axes, scene: Scene, row: int, variant: VariantResult, look: Look, style: MetricFormat
) -> None:
    found, theme, color = variant.difference, scene.theme, look.color(scene.theme)
    if found is None:
        return
    if found.t is not None:
        _interval_line(axes, found.t, row, color=color, caps=True)
    _interval_line(axes, found.bootstrap, row, color=color, caps=False)
    axes.plot([found.mean], [row], marker="o", markersize=7.5, color=color, mec=theme.surface, mew=1.3)
    axes.text(
        -0.015,
        row,
        shorten(variant.name, NAME_WIDTH),
        transform=axes.get_yaxis_transform(),
        ha="right",
        va="center",
        color=theme.ink,
    )
    axes.text(
        1.02, row, minus(style.change(found.mean)), transform=axes.get_yaxis_transform(), va="center", color=theme.ink
    )
    axes.annotate(
        f"{VERDICT_SIGNS[found.verdict]} {found.verdict}",
        xy=(1.02, row),
        xycoords=axes.get_yaxis_transform(),
        xytext=(42, 0),
        textcoords="offset points",
        va="center",
        color=theme.verdict(found.verdict),
        fontweight="bold" if found.verdict != "inside the noise" else "normal",
    )


def _interval_line(axes: Axes, interval: Interval, row: int, *, color: str, caps: bool) -> None:
    """The interval as a wide pale bar, or as a thin line with caps; a cap beyond the axes becomes an arrow head."""
    low, high = axes.get_xlim()
    left, right = max(interval.low, low), min(interval.high, high)
    if not caps:
        axes.plot([left, right], [row, row], color=color, linewidth=9, alpha=0.32, solid_capstyle="butt")
        return
    axes.plot([left, right], [row, row], color=color, linewidth=1.3)
    for end, bound, arrow in ((left, interval.low, "<"), (right, interval.high, ">")):
        axes.plot([end], [row], color=color, marker="|" if end == bound else arrow, markersize=7, clip_on=False)
