"""The differences to the baseline, a row per variant: point, both intervals, zero, verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngraft.drawing.sheet import TEXT_SIZE, headed
from attngraft.drawing.theme import VERDICT_SIGNS, Look
from attngraft.report.scene import NAME_WIDTH, Scene, ruled
from attngraft.results.study import Interval, StudyResult, VariantResult
from attngraft.results.wording import MetricFormat, metric_format, minus, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    ruled(axes.xaxis, style.scale)
    for row, (variant, look) in enumerate(rows):
        _forest_row(axes, scene, row, variant, look, style)
    unit = f" ({style.points})" if style.points else ""
    headed(axes, theme, f"difference to the baseline, {style.label}{unit}")
    key = "bar: bootstrap 95%" + (" · line: t 95%" if any(v.difference.t for v, _ in rows if v.difference) else "")
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


def _forest_row(axes: Axes, scene: Scene, row: int, variant: VariantResult, look: Look, style: MetricFormat) -> None:
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
