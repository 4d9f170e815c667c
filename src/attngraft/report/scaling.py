"""How time and memory grow with the number of tokens: as a table for the terminal, and as curves on logarithmic axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attngraft.bench.scaling import FIT_FROM, TOLERANCE, Curve, End, Exponent, Point, ScalingResult
from attngraft.drawing.sheet import TEXT_SIZE, Panel, drawing, headed, png, sheet, svg
from attngraft.drawing.theme import MARKERS, THEMES, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

_PANEL = Panel(width=5.0, height=3.9, left=0.75, right=0.3)


# --- terminal -----------------------------------------------------------------------------------------------------


def scaling_table(result: ScalingResult) -> Table:
    """Rows are numbers of tokens; each layer has its time and its memory, and says where and why it ends."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(result.title), caption=Text(_caption(result)), title_justify="left", caption_justify="left"
    )
    table.add_column("tokens", justify="right")
    for curve in result.curves:
        table.add_column(Text(curve.title), justify="right")
        table.add_column("memory", justify="right")
    sizes = {point.tokens for curve in result.curves for point in curve.points}
    ends = {curve.end.tokens for curve in result.curves if curve.end is not None}
    for tokens in sorted(sizes | ends):
        row = [cell for curve in result.curves for cell in _cells(curve, tokens)]
        table.add_row(f"{tokens:,}", *map(Text, row))
    return table


def exponent_lines(result: ScalingResult) -> Iterator[tuple[str, bool | None]]:
    """A sentence per curve that is fitted or has a bar, and whether it keeps that; None where nobody can say."""
    for curve in result.curves:
        if curve.layer in result.bars and curve.time is None:
            yield f"{curve.title}: no exponent; that takes three sizes of {FIT_FROM:,} tokens and more", None
        for what, fit in (("time", curve.time), ("memory", curve.memory)):
            if fit is not None:
                yield f"{curve.title}: {what} ~ N^{_in_words(fit)}", None if fit.bar is None else fit.passed


def _cells(curve: Curve, tokens: int) -> tuple[str, str]:
    for point in curve.points:
        if point.tokens == tokens:
            return seconds_text(point.seconds), "?" if point.memory is None else memory_text(point.memory)
    if curve.end is not None and tokens == curve.end.tokens:
        return curve.end.reason, ""
    return "", ""


def _in_words(fit: Exponent) -> str:
    bar = f", bar {fit.bar:g} +- {TOLERANCE:g}" if fit.bar is not None else ""
    return f"{fit.value:.2f} ({fit.low:.2f} to {fit.high:.2f}), {fit.points} sizes{bar}"


def _caption(result: ScalingResult) -> str:
    environment = result.environment
    parts = (
        str(environment.get("device_name")),
        f"{result.call.threads} thread{'' if result.call.threads == 1 else 's'}",
        f"load {result.load[0]}" if result.load else "",
        f"torch {environment.get('packages', {}).get('torch')}",
        "CPU seconds" if result.call.cpu_time else "",
        f"limits {result.limits.seconds:g} s"
        + (f" and {memory_text(result.limits.memory)}" if result.limits.memory else ""),
    )
    return ", ".join(part for part in parts if part)


def seconds_text(seconds: float) -> str:
    """`1.23 ms`."""
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1, 1e3, "ms")):
        if seconds < limit:
            return f"{scale * seconds:.3g} {unit}"
    return f"{seconds:.3g} s"


def memory_text(size: float) -> str:
    """`1.23 MB`."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


# --- plots --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Quantity:
    """One panel: what it shows of a point and of a curve."""

    title: str
    of: Callable[[Point], float | None]
    fit: Callable[[Curve], Exponent | None]
    text: Callable[[float], str]


_QUANTITIES = (
    _Quantity(title="time of a call", of=lambda p: p.seconds, fit=lambda c: c.time, text=seconds_text),
    _Quantity(title="peak memory of a call", of=lambda p: p.memory, fit=lambda c: c.memory, text=memory_text),
)


def scaling_plots(result: ScalingResult, *, stem: str) -> dict[str, bytes]:
    """File name to content: time and memory beside each other, as PNG and SVG, on white and (`-dark`) on dark."""
    files: dict[str, bytes] = {}
    with drawing(text_as_paths=True):
        for theme in THEMES:
            canvas, axes = sheet([_PANEL, _PANEL], theme, opaque=True)
            for place, quantity in zip(axes, _QUANTITIES, strict=True):
                _draw(place, theme, result.curves, quantity)
            name = stem if theme.name == "light" else f"{stem}-{theme.name}"
            files[f"{name}.png"], files[f"{name}.svg"] = png(canvas), svg(canvas).encode()
    return files


def _draw(axes: Axes, theme: Theme, curves: Sequence[Curve], quantity: _Quantity) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes: set[int] = set()
    for index, curve in enumerate(curves):
        found = [(point.tokens, value) for point in curve.points if (value := quantity.of(point))]
        if not found:
            continue
        sizes.update(tokens for tokens, _ in found)
        fit = quantity.fit(curve)
        color = theme.series[index % len(theme.series)]
        axes.plot(
            *zip(*found, strict=True),
            color=color,
            marker=MARKERS[index % len(MARKERS)],
            markersize=5,
            linewidth=1.7,
            label=curve.title if fit is None else f"{curve.title}, ~ N^{fit.value:.2f}",
        )
        if curve.end is not None:
            _mark_end(axes, theme, color, found[-1], curve.end)
    axes.margins(x=0.06, y=0.1)
    _ticks(axes, sorted(sizes), quantity)
    headed(axes, theme, quantity.title, below="tokens")
    if sizes:
        axes.legend(frameon=False, fontsize=TEXT_SIZE - 1, labelcolor=theme.ink, loc="lower right")


def _mark_end(axes: Axes, theme: Theme, color: str, last: tuple[float, float], end: End) -> None:
    """A cross behind the last point, with what happened at the next size."""
    axes.plot(*last, marker="x", color=color, markersize=11, markeredgewidth=2)
    axes.annotate(
        f"{end.tokens:,}: {end.reason}",
        xy=last,
        xytext=(9, -3),
        textcoords="offset points",
        va="top",
        color=theme.muted,
        fontsize=TEXT_SIZE - 1.5,
    )


def _ticks(axes: Axes, sizes: Sequence[int], quantity: _Quantity) -> None:
    """The sizes themselves below, powers of ten in units at the side."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.xaxis.set_major_locator(FixedLocator(list(sizes)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _count(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity.text(value)))


def _count(value: float) -> str:
    """`784`, `12.5k`, `1.05M`."""
    for limit, scale, unit in ((1e3, 1, ""), (1e6, 1e3, "k")):
        if value < limit:
            return f"{value / scale:.3g}{unit}"
    return f"{value / 1e6:.3g}M"
