"""Learning curves as small multiples: one panel per variant, with the baseline as a reference line.

The panels are written as SVG directly, because matplotlib would take seconds for a hundred of them. The page's script
shows values from `data-points`; the page switches between `.linear` and `.log` groups, and between quantities, with CSS.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.ticker import LogLocator, MaxNLocator

from attngraft.drawing.sheet import STEPS
from attngraft.drawing.theme import VariantStyle, variant_styles
from attngraft.report.figures import CurveBand, curve_bands, curve_unit, difference_bands
from attngraft.report.metrics import other_metrics
from attngraft.results import wording
from attngraft.results.study import StudyResult
from attngraft.results.wording import MetricFormat, metric_format, minus, shown

POINTS = 200  #: maximum number of points of a curve
WIDTH, HEIGHT = 260, 150  #: of a panel, in SVG units
LEFT, RIGHT, TOP, BOTTOM = 38, 252, 10, 126  #: of the area inside of the axes


@dataclass(frozen=True, kw_only=True)
class CurvePanel:
    """The curve of one variant."""

    index: int  #: index of the variant
    end: str  #: value at the end
    svg: Markup


@dataclass(frozen=True, kw_only=True)
class CurveFigure:
    """The curves of a quantity, on the same axes."""

    key: str
    name: str  #: of the quantity, for its selection
    title: str
    log: bool  #: whether the panels also have a logarithmic scale
    panels: list[CurvePanel]


def curve_figures(result: StudyResult) -> list[CurveFigure]:
    """Return the curves that the study has.

    They are the primary metric, its difference to the baseline, the other validation metrics and the training loss.
    """
    if wording.is_untrained(result):
        return []
    style, light = metric_format(result), " (light inference)" if result.light_curves else ""
    gap = f"difference to the baseline ({style.points})" if style.points else "difference to the baseline"

    def validation(key: str, name: str) -> CurveFigure | None:
        look = metric_format(result, name)
        title = f"{look.title}, validation{light}"
        return _figure(result, key, look.title, title, curve_bands(result, f"val/{name}"), look)

    found = [
        validation("metric", result.metric),
        _figure(
            result,
            "difference",
            "difference to the baseline",
            gap,
            difference_bands(result, f"val/{result.metric}"),
            style,
        ),
        *(validation(name, name) for name in other_metrics(result)),
        _figure(result, "train-loss", "training loss", "training loss", curve_bands(result, "train/loss"), None),
    ]
    return [figure for figure in found if figure is not None]


def _figure(
    result: StudyResult,
    key: str,
    name: str,
    title: str,
    bands: Sequence[CurveBand | None],
    style: MetricFormat | None,
) -> CurveFigure | None:
    """Return a figure of values in the format `style`; None: losses. None without values."""
    scale = 1.0 if style is None else style.scale
    scaled = [None if band is None else _scaled(band, scale) for band in bands]
    present = [band for band in scaled if band is not None]
    if not present:
        return None
    first = min(band.epochs[0] for band in present)
    last = max(max(band.epochs[-1] for band in present), first + 1)
    low, high = min(min(band.low) for band in present), max(max(band.high) for band in present)
    if key == "difference":
        low, high = min(low, 0.0), max(high, 0.0)
    log = low > 0 and key != "difference" and (style is None or style.unit != "%")
    baseline = next((index for index, variant in enumerate(result.variants) if variant.is_baseline), None)
    reference = None if baseline is None else scaled[baseline]
    panels = []
    for index, (variant, look, band) in enumerate(zip(result.variants, variant_styles(result), scaled, strict=True)):
        if band is None or (variant.is_baseline and len(present) > 1):
            continue
        x = _axis(first, last, LEFT, RIGHT)
        scales = [("linear", *_linear(low, high))] + ([("log", *_logarithmic(low, high))] if log else [])
        groups = [
            Markup('<g class="{}">{}</g>').format(
                name, _plotted(band, reference if index != baseline else None, look, x, y, ticks, key=key)
            )
            for name, y, ticks in scales
        ]
        last_mean = band.mean[-1] / scale
        number = "{:.4g}".format if style is None else style.change if key == "difference" else style.value
        text = minus(number(last_mean))
        unit = curve_unit(result)
        svg = Markup(
            '<svg class="curve" viewBox="0 0 {} {}" role="img" aria-label="{}" data-x="{} {} {} {}" data-unit="{}" '
            'data-points="{}" font-size="10">{}{}<line class="cursor" y1="{}" y2="{}" stroke="var(--muted)" '
            'visibility="hidden"></line></svg>'
        ).format(
            WIDTH,
            HEIGHT,
            f"{shown(variant.name)}, {title}: {text} at the last {unit}",
            LEFT,
            RIGHT,
            f"{first:g}",
            f"{last:g}",
            unit,
            _points(band, reference if index != baseline and key != "difference" else None),
            _epoch_ticks(first, last, x),
            Markup("").join(groups),
            TOP,
            BOTTOM,
        )
        panels.append(CurvePanel(index=index, end=text, svg=svg))
    return CurveFigure(key=key, name=name, title=title, log=log, panels=panels)


def _scaled(band: CurveBand, scale: float) -> CurveBand:
    """Return at most `POINTS` evenly spaced points of a band, with values times `scale`."""
    count = len(band.epochs)
    kept = sorted({round(i * (count - 1) / (POINTS - 1)) for i in range(POINTS)}) if count > POINTS else range(count)

    def values(of: Sequence[float]) -> list[float]:
        return [scale * of[index] for index in kept]

    return CurveBand(
        epochs=[band.epochs[index] for index in kept],
        mean=values(band.mean),
        low=values(band.low),
        high=values(band.high),
    )


# --- axes -------------------------------------------------------------------------------------------------------------

Axis = Callable[[float], float]
Ticks = list[tuple[float, str]]


def _axis(low: float, high: float, start: float, end: float) -> Axis:
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _linear(low: float, high: float) -> tuple[Axis, Ticks]:
    pad = 0.04 * (high - low) or abs(low) * 0.1 or 1.0
    low, high = low - pad, high + pad
    values = [float(v) for v in MaxNLocator(nbins=4, steps=STEPS).tick_values(low, high) if low <= v <= high]
    return _axis(low, high, BOTTOM, TOP), [(value, minus(f"{value:.6g}")) for value in values]


def _logarithmic(low: float, high: float) -> tuple[Axis, Ticks]:
    low, high = 0.97 * low, 1.03 * high
    values: list[float] = []
    for digits in ((1,), (1, 3), (1, 2, 5), range(1, 10)):
        values = [float(v) for v in LogLocator(subs=digits, numticks=12).tick_values(low, high) if low <= v <= high]
        if len(values) >= 3:
            break
    if len(values) < 2:  # less than a decade
        values = [v for v, _ in _linear(low, high)[1] if low <= v <= high]
    inner = _axis(math.log(low), math.log(high), BOTTOM, TOP)
    return lambda value: inner(math.log(value)), [(value, f"{value:.6g}") for value in values[:9]]


def _epoch_ticks(first: float, last: float, x: Axis) -> Markup:
    values = MaxNLocator(nbins=5, integer=True, min_n_ticks=1).tick_values(first, last)
    return Markup("").join(
        Markup('<text x="{}" y="{}" text-anchor="middle" fill="var(--muted)">{}</text>').format(
            f"{x(value):.1f}", BOTTOM + 16, f"{value:g}"
        )
        for value in values
        if first <= value <= last
    )


# --- lines ------------------------------------------------------------------------------------------------------------


def _plotted(
    band: CurveBand, reference: CurveBand | None, look: VariantStyle, x: Axis, y: Axis, ticks: Ticks, *, key: str
) -> Markup:
    parts = [
        Markup(
            '<path d="M{} {}H{}" stroke="var(--line)"></path>'
            '<text x="{}" y="{}" text-anchor="end" fill="var(--muted)">{}</text>'
        ).format(LEFT, f"{y(value):.1f}", RIGHT, LEFT - 5, f"{y(value) + 3.5:.1f}", label)
        for value, label in ticks
    ]

    def line(epochs: Sequence[float], values: Sequence[float]) -> str:
        return "L".join(f"{x(epoch):.1f} {y(value):.1f}" for epoch, value in zip(epochs, values, strict=True))

    if key == "difference":
        parts.append(
            Markup('<path d="M{} {}H{}" stroke="var(--baseline)" stroke-width="1.2"></path>').format(
                LEFT, f"{y(0.0):.1f}", RIGHT
            )
        )
    elif reference is not None:
        parts.append(
            Markup(
                '<path d="M{}" fill="none" stroke="var(--baseline)" stroke-width="1.2" opacity="0.7"></path>'
            ).format(line(reference.epochs, reference.mean))
        )
    color = f"var(--{look.role})"
    if band.low != band.high:
        outline = f"{line(band.epochs, band.low)}L{line(band.epochs[::-1], band.high[::-1])}Z"
        parts.append(Markup('<path d="M{}" fill="{}" opacity="0.16"></path>').format(outline, color))
    dashes = Markup(' stroke-dasharray="5 3"') if look.dashed else ""
    parts.append(
        Markup(
            '<path d="M{}" fill="none" stroke="{}" stroke-width="1.8" stroke-linejoin="round"{}></path>'
            '<circle cx="{}" cy="{}" r="2.6" fill="{}"></circle>'
        ).format(
            line(band.epochs, band.mean),
            color,
            dashes,
            f"{x(band.epochs[-1]):.1f}",
            f"{y(band.mean[-1]):.1f}",
            color,
        )
    )
    return Markup("").join(parts)


def _points(band: CurveBand, reference: CurveBand | None) -> str:
    """Return [epoch, mean, low, high, baseline's mean or null] of each point, as JSON."""
    other = {} if reference is None else dict(zip(reference.epochs, reference.mean, strict=True))

    def rounded(value: float | None) -> float | None:
        return None if value is None else float(f"{value:.5g}")

    rows = [
        [epoch, *map(rounded, (mean, low, high, other.get(epoch)))]
        for epoch, mean, low, high in zip(band.epochs, band.mean, band.low, band.high, strict=True)
    ]
    return json.dumps(rows, separators=(",", ":"))
