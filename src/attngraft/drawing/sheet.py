"""Paper and pens: figures without pyplot, without the user's matplotlib settings, and the same bytes every time."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attngraft.drawing.theme import Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEXT_SIZE = 9.0  #: points
LINE_HEIGHT = 12.5  #: points between the baselines of stacked labels


@contextmanager
def drawing(*, text_as_paths: bool) -> Iterator[None]:
    """Matplotlib's own defaults plus ours while drawing and saving; the user's settings are back afterwards.

    Text is never read as mathematics, since names and titles are the user's.
    """
    from matplotlib import style

    ours: dict[str, Any] = {
        "font.family": ["DejaVu Sans"],
        "font.size": TEXT_SIZE,
        "svg.hashsalt": "attngraft",
        "svg.fonttype": "path" if text_as_paths else "none",
        "text.parse_math": False,
    }
    with style.context(["default", ours]), warnings.catch_warnings():
        # a script that the font lacks is drawn as boxes here, and right in the page and the tables
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The place of one pair of axes on a sheet, in inches: `width` and `height` with all margins."""

    width: float
    height: float
    left: float = 0.55
    right: float = 0.2
    bottom: float = 0.5
    top: float = 0.45


def sheet(panels: Sequence[Panel], theme: Theme, *, opaque: bool) -> tuple[Figure, list[Axes]]:
    """A figure with the panels side by side, at exact sizes so that labels can be placed before drawing."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, height = sum(panel.width for panel in panels), max(panel.height for panel in panels)
    figure = Figure(figsize=(width, height), facecolor=theme.surface if opaque else "none")
    FigureCanvasAgg(figure)
    axes, start = [], 0.0
    for panel in panels:
        inner = panel.width - panel.left - panel.right, height - panel.bottom - panel.top
        box = (start + panel.left) / width, panel.bottom / height, inner[0] / width, inner[1] / height
        axes.append(_plain(figure.add_axes(box), theme))
        start += panel.width
    return figure, axes


def _plain(axes: Axes, theme: Theme) -> Axes:
    """Axes with nothing but a thin base line, quiet ticks and horizontal rules."""
    axes.set_facecolor("none")
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(theme.line)
    axes.tick_params(length=0, colors=theme.muted, labelsize=TEXT_SIZE - 0.5, pad=5)
    axes.grid(axis="y", color=theme.line, linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


def headed(axes: Axes, theme: Theme, title: str, *, below: str = "") -> None:
    """A panel's title at its top left and the name of its horizontal axis."""
    axes.set_title(title, loc="left", color=theme.ink, fontsize=TEXT_SIZE + 0.5, fontweight="bold", pad=12)
    axes.set_xlabel(below, color=theme.muted, fontsize=TEXT_SIZE - 0.5, labelpad=5)


def size_in_points(axes: Axes) -> tuple[float, float]:
    """Width and height of the axes' inside."""
    inside = axes.get_window_extent()
    dots = axes.figure.dpi / 72
    return float(inside.width) / dots, float(inside.height) / dots


def spread(targets: Sequence[float], gap: float, *, low: float, high: float) -> list[float]:
    """Positions as near to `targets` as can be, in their order, at least `gap` apart and within `low` and `high`.

    Neighbors that would overlap form a group that is centered on the mean of its targets (pool adjacent violators).
    Where they cannot all fit between the limits they are laid out evenly over them.
    """
    if (len(targets) - 1) * gap > high - low:
        gap = (high - low) / (len(targets) - 1)
    order = sorted(range(len(targets)), key=lambda index: targets[index])
    groups: list[tuple[float, int]] = []  # mean of the members' targets, each less its offset in the group; count
    for rank, index in enumerate(order):
        mean, count = targets[index] - rank * gap, 1
        while groups and groups[-1][0] >= mean:
            before, size = groups.pop()
            mean, count = (before * size + mean * count) / (size + count), size + count
        groups.append((mean, count))
    shifted = [mean for mean, count in groups for _ in range(count)]
    reach = high - (len(targets) - 1) * gap
    placed = [0.0] * len(targets)
    for rank, index in enumerate(order):
        placed[index] = min(max(shifted[rank], low), max(low, reach)) + rank * gap
    return placed


def png(figure: Figure) -> bytes:
    return _saved(figure, "png", {"Software": None}, dpi=180)


def svg(figure: Figure) -> str:
    return _saved(figure, "svg", {"Date": None, "Creator": None}).decode()


def _saved(figure: Figure, kind: str, metadata: dict[str, None], **options: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format=kind, metadata=metadata, **options)
    return stream.getvalue()
