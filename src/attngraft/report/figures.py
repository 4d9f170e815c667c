"""The figures of a study: differences, learning curves, epochs to the baseline's best mean, costs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from attngraft.drawing.sheet import (
    LINE_HEIGHT,
    STEPS,
    TEXT_SIZE,
    Drawing,
    figure_files,
    set_round_ticks,
    set_titles,
    size_in_points,
    spread,
)
from attngraft.drawing.theme import Theme, VariantStyle, variant_styles
from attngraft.report.differences import NAME_WIDTH, difference_drawing, epochs_drawing
from attngraft.results import wording
from attngraft.results.study import Cost, Interval, RunSummary, StudyResult
from attngraft.results.wording import metric_format, shorten, shown

MOST = 20  #: variants in the figures of curves and costs; more would hide each other
FIGURES = ("differences", "curves", "epochs", "cost", "cost-more")
#: names of all files that `plot_files` may return
FILES = frozenset(f"{name}{theme}.{kind}" for name in FIGURES for theme in ("", "-dark") for kind in ("png", "svg"))


def study_figures(result: StudyResult) -> dict[str, list[Drawing]]:
    """Return the panels of each of the `FIGURES` for which the study has data."""
    few = replace(result, variants=[result.variants[index] for index in drawn_variants(result)])
    drawings = (
        [difference_drawing(result)],
        [] if wording.is_untrained(result) else _curve_drawings(few, of=len(result.variants)),
        [epochs_drawing(result)],
        [_cost_drawing(few, name) for name in ("parameters", "macs", "train_time")],
        [_cost_drawing(few, name) for name in ("inference_time", "memory")],
    )
    present = [[panel for panel in panels if panel is not None] for panels in drawings]
    return {name: panels for name, panels in zip(FIGURES, present, strict=True) if panels}


def drawn_variants(result: StudyResult) -> list[int]:
    """Return the indices of the variants in the figures of curves and costs: the baseline, and up to `MOST` - 1 best."""

    def rank(index: int) -> tuple[bool, float]:
        variant = result.variants[index]
        value = variant.last[result.metric].mean if result.metric in variant.last else math.nan
        worse = -value if result.higher_is_better else value
        return not variant.is_baseline, math.inf if math.isnan(worse) else worse

    return sorted(sorted(range(len(result.variants)), key=rank)[:MOST])


def drawn_text(result: StudyResult) -> str:
    """Return a sentence if not all variants are drawn, else an empty string."""
    number = len(result.variants)
    return f"Drawn are the baseline and the {MOST - 1} best of {number - 1} other variants." if number > MOST else ""


def plot_files(result: StudyResult) -> dict[str, bytes]:
    """Return the contents of the plot files by name: PNG and SVG, light and dark (`name-dark.png`)."""
    files: dict[str, bytes] = {}
    for name, panels in study_figures(result).items():
        files |= figure_files(name, panels)
    return files


# --- learning curves --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CurveBand:
    """A quantity at each epoch: mean, minimum and maximum over the seeds that have a value."""

    epochs: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def band(curves: Sequence[dict[float, float]]) -> CurveBand | None:
    """Combine the curves (epoch -> value) of all seeds; non-finite values count as missing."""
    finite = [{epoch: value for epoch, value in curve.items() if math.isfinite(value)} for curve in curves]
    epochs = sorted({epoch for curve in finite for epoch in curve})
    if not epochs:
        return None
    columns = [[curve[epoch] for curve in finite if epoch in curve] for epoch in epochs]
    return CurveBand(
        epochs=epochs,
        mean=[sum(column) / len(column) for column in columns],
        low=[min(column) for column in columns],
        high=[max(column) for column in columns],
    )


def curve_bands(result: StudyResult, key: str) -> list[CurveBand | None]:
    """Return the band of `key` for each variant."""
    return [band([_by_epoch(run, key) for run in variant.runs]) for variant in result.variants]


def difference_bands(result: StudyResult, key: str) -> list[CurveBand | None]:
    """Return the band of each variant's difference to the baseline, paired by seed (baseline: None)."""
    baseline = wording.baseline_of(result)
    base = {run.seed: _by_epoch(run, key) for run in baseline.runs} if baseline else {}
    bands: list[CurveBand | None] = []
    for variant in result.variants:
        gaps = []
        for run in [] if variant.is_baseline else variant.runs:
            other = base.get(run.seed, {})
            gaps.append({epoch: v - other[epoch] for epoch, v in _by_epoch(run, key).items() if epoch in other})
        bands.append(band(gaps))
    return bands


def _by_epoch(run: RunSummary, key: str) -> dict[float, float]:
    return dict(zip(run.curve.get("step", run.curve.get("epoch", [])), run.curve.get(key, []), strict=False))


def _curve_drawings(result: StudyResult, *, of: int) -> list[Drawing]:
    """Return the panels of learning curves; `of` is the number of variants of the study."""
    style, key = metric_format(result), f"val/{result.metric}"
    light = " (light inference)" if result.light_curves else ""
    number = len(result.variants)
    best = f", the best {number} of {of} variants" if number < of else ""
    gap = f"difference to the baseline ({style.points})" if style.points else "difference to the baseline"
    parts = [
        ("metric", f"{style.title}, validation{light}{best}", curve_bands(result, key), style.scale, False),
        ("difference", gap, difference_bands(result, key), style.scale, True),
        ("train-loss", "training loss", curve_bands(result, "train/loss"), 1.0, False),
    ]
    drawings = []
    for name, title, bands, scale, zero in parts:
        ends = [
            f"{shown(variant.name)} {scale * found.mean[-1]:.4g}"
            for variant, found in zip(result.variants, bands, strict=True)
            if found is not None
        ]
        if ends:
            alt = f"{title} by {curve_unit(result)}. Means over seeds at the last {curve_unit(result)}: {', '.join(ends)}."
            draw = partial(_draw_bands, result=result, bands=bands, title=title, scale=scale, zero=zero)
            drawings.append(_named_drawing(result, name, alt, draw, width=4.1))
    return drawings


def curve_unit(result: StudyResult) -> str:
    counted = any("step" in run.curve for variant in result.variants for run in variant.runs)
    return "update" if counted else "epoch"


def _draw_bands(
    axes: Axes,
    theme: Theme,
    *,
    result: StudyResult,
    bands: Sequence[CurveBand | None],
    title: str,
    scale: float,
    zero: bool,
) -> None:
    """Draw means as lines and ranges over seeds as bands, with names at the right.

    `zero` adds a horizontal line at 0, the baseline.
    """
    if zero:
        axes.axhline(0, color=theme.baseline, linewidth=1.2)
    ends = []
    for variant, look, found in zip(result.variants, variant_styles(result), bands, strict=True):
        if found is None:
            continue
        color = look.color(theme)
        axes.fill_between(found.epochs, found.low, found.high, color=color, alpha=0.13, linewidth=0)
        axes.plot(found.epochs, found.mean, color=color, linewidth=1.7, linestyle="--" if look.dashed else "-")
        end = found.epochs[-1], found.mean[-1]
        axes.plot(*end, color=color, marker=look.marker, markersize=4.5, clip_on=False, zorder=3)
        ends.append((variant.name, look, *end))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    set_round_ticks(axes.yaxis, scale)
    first = min(found.epochs[0] for found in bands if found is not None)
    last = max(found.epochs[-1] for found in bands if found is not None)
    axes.set_xlim(first, max(last, first + 1))
    set_titles(axes, theme, title, below=curve_unit(result))
    _label_points(axes, theme, ends)


# --- metric against costs ---------------------------------------------------------------------------------------------

#: kind of cost -> (title, function that returns a variant's ratio to the baseline)
COST_AXES: dict[str, tuple[str, Callable[[Cost], Interval | float | None]]] = {
    "parameters": ("parameters", lambda cost: cost.parameters_ratio),
    "macs": ("multiply-adds", lambda cost: cost.macs_ratio),
    "train_time": ("training time", lambda cost: cost.train_time_ratio),
    "inference_time": ("inference time", lambda cost: cost.inference_time_ratio),
    "memory": ("peak memory", lambda cost: cost.memory_ratio),
}


def _cost_drawing(result: StudyResult, name: str) -> Drawing | None:
    style, (title, ratio_of) = metric_format(result), COST_AXES[name]
    ratios: list[Interval | None] = []
    for variant in result.variants:
        ratio = ratio_of(variant.cost) if variant.cost is not None else None
        if isinstance(ratio, float | int):  # a count or a single measurement has no interval
            ratio = Interval(point=float(ratio), low=float(ratio), high=float(ratio))
        measured = result.metric in variant.last and ratio is not None and math.isfinite(ratio.point)
        ratios.append(ratio if measured else None)
    texts = {
        f"point-{index}": f"{shown(v.name)} {wording.ratio(ratio.point, exact=True)}, "
        f"{style.value(v.last[result.metric].mean)}"
        for index, (v, ratio) in enumerate(zip(result.variants, ratios, strict=True))
        if ratio is not None
    }
    if len(texts) < 2:
        return None
    alt = f"{style.title} against {title} (ratio to the baseline): {'; '.join(texts.values())}."
    draw = partial(_draw_cost, result=result, ratios=ratios, title=f"{style.column} by {title}")
    drawing = _named_drawing(result, f"cost-{name.replace('_', '-')}", alt, draw, width=2.65, bottom=0.55)
    return replace(drawing, titles=texts)


def _draw_cost(axes: Axes, theme: Theme, *, result: StudyResult, ratios: Sequence[Interval | None], title: str) -> None:
    """Draw the primary metric against a cost ratio, with deviations and intervals as error bars."""
    axes.axvline(1, color=theme.baseline, linewidth=0.8, linestyle=(0, (2, 3)))
    points = []
    styles = variant_styles(result)
    for index, (variant, look, ratio) in enumerate(zip(result.variants, styles, ratios, strict=True)):
        if ratio is None:
            continue
        value = variant.last[result.metric]
        drawn = axes.errorbar(
            ratio.point,
            value.mean,
            xerr=[[ratio.point - ratio.low], [ratio.high - ratio.point]] if ratio.high > ratio.low else None,
            yerr=value.deviation,
            color=look.color(theme),
            marker=look.marker,
            markersize=6.5,
            markeredgecolor=theme.surface,
            markeredgewidth=0.8,
            elinewidth=1.1,
        )
        drawn.lines[0].set_gid(f"point-{index}")
        points.append((variant.name, look, ratio.point, value.mean))
    # span at least 0.1, so that a difference of 0.001 does not look large
    low = min(0.97, *(ratio.low for ratio in ratios if ratio is not None))
    high = max(1.07, *(ratio.high for ratio in ratios if ratio is not None))
    axes.set_xlim(low - 0.06 * (high - low), high + 0.06 * (high - low))
    axes.margins(y=0.12)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=STEPS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}×"))
    set_round_ticks(axes.yaxis, metric_format(result).scale)
    set_titles(axes, theme, title, below="ratio to the baseline")
    _label_points(axes, theme, points, leader=(0, (1, 2)))


# --- names in the right margin ----------------------------------------------------------------------------------------


def _named_drawing(
    result: StudyResult, name: str, alt: str, draw: Callable[[Axes, Theme], None], *, width: float, bottom: float = 0.5
) -> Drawing:
    """Return a drawing whose right margin fits all variants' names."""
    margin = 0.36 + 0.076 * max((len(shorten(variant.name, NAME_WIDTH)) for variant in result.variants), default=0)
    height = max(3.3, 0.95 + len(result.variants) * LINE_HEIGHT / 72)
    return Drawing(name=name, alt=alt, draw=draw, width=width + margin, height=height, right=margin, bottom=bottom)


def _label_points(
    axes: Axes,
    theme: Theme,
    points: Sequence[tuple[str, VariantStyle, float, float]],
    *,
    leader: str | tuple[float, tuple[float, ...]] = "-",
) -> None:
    """Write the points' names in the right margin, connected to their points by thin lines."""
    axes.set_ylim(axes.get_ylim())
    width, height = size_in_points(axes)
    to_axes = axes.transData + axes.transAxes.inverted()
    targets = [float(to_axes.transform((x, y))[1]) for _, _, x, y in points]
    heights = spread(targets, LINE_HEIGHT / height, low=0.0, high=1.0)
    for (name, look, x, y), level in zip(points, heights, strict=True):
        axes.annotate(
            shorten(name, NAME_WIDTH),
            xy=(x, y),
            xytext=(1 + 17 / width, level),
            textcoords="axes fraction",
            color=theme.ink,
            fontsize=TEXT_SIZE - 0.5,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": look.color(theme),
                "linestyle": leader,
                "linewidth": 0.8,
                "relpos": (0, 0.5),
                "patchA": None,  # matplotlib would search for the intersection with the text's box, which is slow
                "shrinkA": 4,
                "shrinkB": 4,
            },
        )
