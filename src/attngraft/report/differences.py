"""Figures with one row per variant: differences to the baseline, and epochs to the baseline's best."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from attngraft.drawing.sheet import TEXT_SIZE, Drawing, set_round_ticks, set_titles
from attngraft.drawing.theme import VERDICT_SIGNS, Theme, variant_styles
from attngraft.results import wording
from attngraft.results.study import Difference, Interval, StudyResult
from attngraft.results.wording import MetricFormat, metric_format, minus, shorten, shown

NAME_WIDTH = 22  #: maximum number of characters of a variant's name on a plot


def difference_drawing(result: StudyResult) -> Drawing | None:
    """Return a forest plot: differences, intervals and verdicts."""
    style, named = metric_format(result), wording.interval_name(result)
    rows = [
        (variant.name, variant.difference, look, wording.verdict_text(result, variant))
        for variant, look in zip(result.variants, variant_styles(result), strict=True)
        if variant.difference is not None
    ]
    if not rows:
        return None

    def draw(axes: Axes, theme: Theme) -> None:
        _draw_rows(axes, theme, [name for name, *_ in rows], limits=difference_range(result), reference=0)
        set_round_ticks(axes.xaxis, style.scale)
        beside = axes.get_yaxis_transform()
        for row, (_, difference, look, verdict) in enumerate(rows):
            color = look.color(theme)
            _draw_interval(axes, wording.deciding_interval(difference), row, color=color)
            axes.plot([difference.mean], [row], marker="o", markersize=7.5, color=color, mec=theme.surface, mew=1.3)
            change = minus(style.change(difference.mean))
            axes.text(1.02, row, change, transform=beside, va="center", color=theme.ink)
            axes.annotate(
                f"{VERDICT_SIGNS[verdict]} {verdict}",
                xy=(1.02, row),
                xycoords=beside,
                xytext=(42, 0),
                textcoords="offset points",
                va="center",
                color={"better": theme.better, "worse": theme.worse}.get(verdict, theme.noise),
                fontweight="bold" if verdict in ("better", "worse") else "normal",
            )
            axes.axhspan(row - 0.5, row + 0.5, alpha=0, linewidth=0, gid=f"row-{row}")  # to point at
        unit = f" ({style.points})" if style.points else ""
        set_titles(axes, theme, f"difference to the baseline, {style.label}{unit}")
        notes = {wording.interval_note(difference) for _, difference, *_ in rows} - {""}
        key = f"bar: {named}" + (f" ({', '.join(sorted(notes))})" if len(notes) == 1 else "")
        left, right = ("worse", "better") if result.higher_is_better else ("better", "worse")
        for x, text, align in ((0, f"← {left}", "left"), (0.5, key, "center"), (1, f"{right} →", "right")):
            axes.annotate(
                text,
                xy=(x, 0),
                xytext=(0, -26),
                xycoords="axes fraction",
                textcoords="offset points",
                ha=align,
                color=theme.muted,
                fontsize=TEXT_SIZE - 0.5,
            )

    texts = [
        shown(f"{name}: {wording.difference_sentence(d, style, named=named)}, {verdict}")
        for name, d, _, verdict in rows
    ]
    alt = f"Differences to the baseline. {'; '.join(texts)}."
    width = _names_width([name for name, *_ in rows])
    return Drawing(
        name="forest",
        alt=alt,
        titles={f"row-{row}": text for row, text in enumerate(texts)},
        draw=draw,
        width=8.4,
        height=1.25 + 0.42 * len(rows),
        left=width,
        right=2.05,
        bottom=0.6,
    )


def epochs_drawing(result: StudyResult) -> Drawing | None:
    """Return a bar chart of the epochs to the baseline's best mean (ratios), with a dot per seed."""
    rows, styles = wording.epochs_compared(result), variant_styles(result)
    if not rows:
        return None
    ratios = [ratio for _, _, reached in rows for ratio in (reached.ratio, *map(reached.ratio_of, reached.by_seed))]
    longest = max([1.0, *(ratio for ratio in ratios if ratio is not None)])

    def draw(axes: Axes, theme: Theme) -> None:
        _draw_rows(axes, theme, [variant.name for _, variant, _ in rows], limits=(0, 1.06 * longest), reference=1)
        set_round_ticks(axes.xaxis)
        beside = axes.get_yaxis_transform()
        for row, (index, variant, reached) in enumerate(rows):
            color = styles[index].color(theme)
            if reached.ratio is not None:
                axes.barh(row, reached.ratio, height=0.62, color=color, alpha=0.32, linewidth=0)
                axes.plot([reached.ratio] * 2, [row - 0.31, row + 0.31], color=color, linewidth=2.2)
            for ratio in map(reached.ratio_of, reached.by_seed):
                if ratio is not None:
                    axes.plot([ratio], [row + 0.17], marker="o", markersize=4, color=color, mec=theme.surface, mew=0.7)
            if more := wording.added_parameters(variant):
                text = "no more parameters" if more == "0%" else f"{minus(more)} parameters"
                axes.text(0.015, row - 0.06, text, transform=beside, va="center", color=theme.ink)
            text = wording.epochs_ratio_text(reached, wording.epochs_of(variant, result))
            axes.text(1.02, row, text, transform=beside, va="center", color=theme.ink)
            axes.axhspan(row - 0.5, row + 0.5, alpha=0, linewidth=0, gid=f"row-{row}")  # to point at
        below = f"1 = the baseline's own epoch {rows[0][2].baseline_epoch}; lower is faster"
        set_titles(axes, theme, "epochs to the baseline's best mean", below=below)

    texts = [
        shown(wording.epochs_sentence(variant, reached, wording.epochs_of(variant, result)))
        for _, variant, reached in rows
    ]
    return Drawing(
        name="epochs",
        titles={f"row-{row}": text for row, text in enumerate(texts)},
        alt=f"Epochs to the baseline's best mean over those of the baseline itself. {'. '.join(texts)}.",
        draw=draw,
        width=8.4,
        height=1.25 + 0.42 * len(rows),
        left=_names_width([variant.name for _, variant, _ in rows]),
        right=1.75,
        bottom=0.6,
    )


def _names_width(names: Sequence[str]) -> float:
    return 0.3 + 0.083 * max(len(shorten(name, NAME_WIDTH)) for name in names)


def _draw_rows(
    axes: Axes, theme: Theme, names: Sequence[str], *, limits: tuple[float, float], reference: float
) -> None:
    """Set up axes with one named row per variant and a vertical reference line."""
    axes.set(xlim=limits, ylim=(len(names) - 0.4, -0.6), yticks=[])
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=theme.line, linewidth=0.6)
    axes.axvline(reference, color=theme.baseline, linewidth=1.2)
    beside = axes.get_yaxis_transform()
    for row, name in enumerate(names):
        text = shorten(name, NAME_WIDTH)
        axes.text(-0.015, row, text, transform=beside, ha="right", va="center", color=theme.ink)


def _draw_interval(axes: Axes, interval: Interval, row: int, *, color: str) -> None:
    """Draw an interval as a pale bar, with an arrowhead at each end that leaves the axes."""
    low, high = axes.get_xlim()
    left, right = max(interval.low, low), min(interval.high, high)
    axes.plot([left, right], [row, row], color=color, linewidth=9, alpha=0.32, solid_capstyle="butt")
    for end, bound, arrow in ((left, interval.low, "<"), (right, interval.high, ">")):
        if end != bound:
            axes.plot([end], [row], color=color, marker=arrow, markersize=7, clip_on=False)


def difference_range(result: StudyResult) -> tuple[float, float]:
    """Return an axis range that includes zero, all differences and their intervals.

    Intervals are cut off at three times the largest absolute value of the differences and bootstrap intervals, because with
    two seeds they can be so wide that nothing else would be visible.
    """
    differences = [variant.difference for variant in result.variants if variant.difference is not None]
    inner = [bound for d in differences for bound in (d.mean, d.bootstrap.low, d.bootstrap.high)]
    shown_intervals = [wording.deciding_interval(d) for d in differences]
    outer = [bound for interval in shown_intervals for bound in (interval.low, interval.high)]
    reach = max((abs(bound) for bound in inner), default=0.0) or 1.0
    bounds = [0.0, *(d.mean for d in differences), *(max(-3 * reach, min(3 * reach, bound)) for bound in outer)]
    pad = 0.06 * ((max(bounds) - min(bounds)) or reach)
    return min(bounds) - pad, max(bounds) + pad


@dataclass(frozen=True, kw_only=True)
class IntervalBar:
    """A difference drawn in a table cell; positions are in percent of a range shared by all rows."""

    zero: float
    point: float
    interval: tuple[float, float]
    alt: str


def interval_bar(difference: Difference, result: StudyResult, style: MetricFormat) -> IntervalBar:
    low, high = difference_range(result)

    def position(value: float) -> float:
        return round(100 * (min(max(value, low), high) - low) / (high - low), 2)

    interval = wording.deciding_interval(difference)
    return IntervalBar(
        zero=position(0.0),
        point=position(difference.mean),
        interval=(position(interval.low), position(interval.high)),
        alt=minus(wording.difference_sentence(difference, style, named=wording.interval_name(result))),
    )
