"""Time and memory against the number of tokens: a terminal table, and plots with logarithmic axes."""

from collections.abc import Callable, Iterator
from functools import partial

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from rich.table import Table
from rich.text import Text

from attngraft.bench.scaling import FIT_FROM, TOLERANCE, Curve, Exponent, Point, ScalingResult
from attngraft.drawing.sheet import TEXT_SIZE, Drawing, figure_files, set_titles
from attngraft.drawing.theme import MARKERS, Theme

# --- terminal ---------------------------------------------------------------------------------------------------------


def scaling_table(result: ScalingResult) -> Table:
    """Return a table of time and memory by layer and number of tokens, with the reason a curve ends."""
    environment, limits = result.environment, result.limits
    caption = (
        str(environment.get("device_name")),
        f"{result.call.threads} thread{'' if result.call.threads == 1 else 's'}",
        f"load {result.load[0]}" if result.load else "",
        f"torch {environment.get('packages', {}).get('torch')}",
        "CPU seconds" if result.call.cpu_time else "",
        f"limits {limits.seconds:g} s" + (f" and {memory_text(limits.memory)}" if limits.memory else ""),
    )
    table = Table(
        title=Text(result.title),
        caption=Text(", ".join(part for part in caption if part)),
        title_justify="left",
        caption_justify="left",
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
    """Yield a sentence for each fitted exponent, or for a missing fit that has a target (`bar`).

    Each sentence is paired with whether the exponent meets its target; None without a target or a fit.
    """
    for curve in result.curves:
        if curve.layer in result.bars and curve.time is None:
            yield f"{curve.title}: no exponent; it needs three sizes of at least {FIT_FROM:,} tokens", None
        for quantity, fit in (("time", curve.time), ("memory", curve.memory)):
            if fit is not None:
                bar = f", bar {fit.bar:g} +- {TOLERANCE:g}" if fit.bar is not None else ""
                text = f"{fit.value:.2f} ({fit.low:.2f} to {fit.high:.2f}), {fit.points} sizes{bar}"
                yield f"{curve.title}: {quantity} ~ N^{text}", None if fit.bar is None else fit.passed


def _cells(curve: Curve, tokens: int) -> tuple[str, str]:
    for point in curve.points:
        if point.tokens == tokens:
            return seconds_text(point.seconds), "?" if point.memory is None else memory_text(point.memory)
    if curve.end is not None and tokens == curve.end.tokens:
        return curve.end.reason, ""
    return "", ""


def seconds_text(seconds: float) -> str:
    """Format a time: `1.23 ms`."""
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1, 1e3, "ms")):
        if seconds < limit:
            return f"{scale * seconds:.3g} {unit}"
    return f"{seconds:.3g} s"


def memory_text(size: float) -> str:
    """Format bytes: `1.23 MB`."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


# --- plots ------------------------------------------------------------------------------------------------------------


def scaling_plots(result: ScalingResult, *, stem: str) -> dict[str, bytes]:
    """Return plots of time and memory by file name: PNG and SVG, light and dark (`-dark`)."""
    return figure_files(stem, scaling_drawings(result))


def scaling_drawings(result: ScalingResult) -> list[Drawing]:
    time = partial(
        _draw, result=result, title="time of a call", of=lambda p: p.seconds, fit_of=lambda c: c.time, text=seconds_text
    )
    memory = partial(
        _draw,
        result=result,
        title="peak memory of a call",
        of=lambda p: p.memory,
        fit_of=lambda c: c.memory,
        text=memory_text,
    )
    panel = partial(Drawing, alt="", width=5.0, height=3.9, left=0.75, right=0.3)
    return [panel(name="time", draw=time), panel(name="memory", draw=memory)]


def _draw(
    axes: Axes,
    theme: Theme,
    *,
    result: ScalingResult,
    title: str,
    of: Callable[[Point], float | None],
    fit_of: Callable[[Curve], Exponent | None],
    text: Callable[[float], str],
) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes: set[int] = set()
    for index, curve in enumerate(result.curves):
        points = [(point.tokens, value) for point in curve.points if (value := of(point))]
        if not points:
            continue
        sizes.update(tokens for tokens, _ in points)
        fit, color = fit_of(curve), theme.series[index % len(theme.series)]
        axes.plot(
            *zip(*points, strict=True),
            color=color,
            marker=MARKERS[index % len(MARKERS)],
            markersize=5,
            linewidth=1.7,
            label=curve.title if fit is None else f"{curve.title}, ~ N^{fit.value:.2f}",
        )
        if curve.end is not None:  # mark the end of the curve with a cross and its reason at the next size
            axes.plot(*points[-1], marker="x", color=color, markersize=11, markeredgewidth=2)
            axes.annotate(
                f"{curve.end.tokens:,}: {curve.end.reason}",
                xy=points[-1],
                xytext=(9, -3),
                textcoords="offset points",
                va="top",
                color=theme.muted,
                fontsize=TEXT_SIZE - 1.5,
            )
    axes.margins(x=0.06, y=0.1)
    axes.xaxis.set_major_locator(FixedLocator(sorted(sizes)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tokens_text(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    set_titles(axes, theme, title, below="tokens")
    if sizes:
        axes.legend(frameon=False, fontsize=TEXT_SIZE - 1, labelcolor=theme.ink, loc="lower right")


def _tokens_text(value: float) -> str:
    """Format a number of tokens: `784`, `12.5k`, `1.05M`."""
    for limit, scale, unit in ((1e3, 1, ""), (1e6, 1e3, "k")):
        if value < limit:
            return f"{value / scale:.3g}{unit}"
    return f"{value / 1e6:.3g}M"
