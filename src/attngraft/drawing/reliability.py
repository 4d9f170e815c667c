"""Panels of task results for one variant: reliability diagrams and large confusion matrices."""

import math
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from attngraft.drawing.sheet import TEXT_SIZE, Drawing, figure_files, set_titles
from attngraft.drawing.theme import LIGHT, Theme
from attngraft.results.sections import Matrix, Reliability
from attngraft.results.wording import plural, shorten, shown

LEVELS = 12  #: number of shades of a matrix
_CELL = 0.125  #: side of a cell in inches; 9 points, since integer coordinates keep pages with many matrices small
_LABEL = 16  #: largest number of characters of a row's or column's name


def reliability_files(found: Reliability, *, title: str) -> dict[str, bytes]:
    """Draw one model's reliability diagram as `reliability.svg` and `reliability.png`."""
    error = 100 * sum(found.error_by_seed) / (len(found.error_by_seed) or 1)
    drawing = reliability_drawing(found, title=f"{shown(title)}: ECE {error:.2f} %")
    return figure_files("reliability", [drawing], [LIGHT])


def reliability_drawing(
    found: Reliability, baseline: Reliability | None = None, *, role: str = "series-0", title: str = "", name: str = ""
) -> Drawing:
    """Return a reliability diagram: accuracy against confidence, with bin counts below.

    The baseline is drawn as a thin line.

    Args:
        found: the variant's bins.
        baseline: the baseline's bins; None for the baseline itself.
        role: role of the variant's color in the theme.
        title: title of the panel.
        name: name of the drawing.
    """
    bins = [f"{stated:.0f}%: {observed:.0f}%" for stated, observed, _ in _bins(found)]
    return Drawing(
        name=name,
        alt=f"Confidence: accuracy, of {plural(sum(found.counts), 'prediction')}: {', '.join(bins)}.",
        draw=partial(_draw_reliability, found=found, baseline=baseline, role=role, title=title),
        width=3.5,
        height=4.1 if title else 3.8,
        bottom=1.15,
        top=0.45 if title else 0.15,
    )


def _bins(found: Reliability) -> np.ndarray:
    """Return confidence and accuracy in percent, and the count, of each bin that is not empty, (bins, 3)."""
    bins = np.array([found.stated, found.observed, found.counts], dtype=float).T  # None becomes NaN
    return bins[~np.isnan(bins).any(1)] * (100, 100, 1)


def _draw_reliability(
    axes: Axes, theme: Theme, *, found: Reliability, baseline: Reliability | None, role: str, title: str
) -> None:
    color, most = theme.colors[role], max(found.counts, default=0) or 1
    axes.plot([0, 100], [0, 100], color=theme.muted, linewidth=1, linestyle=(0, (3, 3)))
    if baseline is not None:
        axes.plot(*_bins(baseline).T[:2], color=theme.baseline, linewidth=1, alpha=0.6, clip_on=False)
    stated, observed, counts = _bins(found).T
    axes.plot(stated, observed, color=color, linewidth=1.5, clip_on=False)
    axes.scatter(stated, observed, s=8 + 40 * counts / most, color=color, clip_on=False, zorder=3)
    axes.set(xlim=(0, 100), ylim=(0, 100), xticks=range(0, 101, 25), yticks=range(0, 101, 25))
    set_titles(axes, theme, title, beside="accuracy, %")
    inside = axes.get_window_extent()
    bars = axes.inset_axes((0, -70 / (72 * inside.height / axes.figure.dpi), 1, 0.17))
    bars.set_facecolor("none")
    bars.spines["bottom"].set_color(theme.line)
    width = 100 / (len(found.counts) or 1)
    centers = [width * (index + 0.5) for index in range(len(found.counts))]
    bars.bar(centers, found.counts, width=0.9 * width, color=color, alpha=0.5, linewidth=0)
    bars.set(xlim=(0, 100), xticks=[], yticks=[])
    bars.set_xlabel("confidence, %", color=theme.muted, fontsize=TEXT_SIZE - 0.5, labelpad=5)


def matrix_drawing(matrix: Matrix, *, alt: str, name: str) -> Drawing:
    """Return a large matrix drawn as shades.

    The shade of a cell is the square root of its share of the row, so that small counts are visible.
    """
    left, top = (
        _CELL * math.ceil((0.2 + 0.068 * max((len(shorten(each, _LABEL)) for each in names), default=0)) / _CELL)
        for names in (matrix.rows, matrix.columns)
    )
    return Drawing(
        name=name,
        alt=alt,
        draw=partial(_draw_matrix, matrix=matrix),
        width=left + _CELL * (len(matrix.columns) + 1),
        height=top + _CELL * (len(matrix.rows) + 1),
        left=left,
        right=_CELL,
        bottom=_CELL,
        top=top,
    )


def _draw_matrix(axes: Axes, theme: Theme, *, matrix: Matrix) -> None:
    axes.set(xlim=(0, len(matrix.columns)), ylim=(len(matrix.rows), 0), xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    # tick labels would take three times as long to draw
    text: dict[str, Any] = {"color": theme.ink, "fontsize": TEXT_SIZE - 2}
    for x, name in enumerate(matrix.columns):
        axes.text(x + 0.5, -0.3, shorten(name, _LABEL), rotation=90, ha="center", va="bottom", **text)
    for y, name in enumerate(matrix.rows):
        axes.text(-0.3, y + 0.5, shorten(name, _LABEL), ha="right", va="center", **text)
    # one path per level; each run of neighboring cells of this level in a row is a stroke, one cell wide
    strokes: dict[int, list[tuple[float, float]]] = {}
    for y, row in enumerate(matrix.counts):
        total = sum(row) or 1
        levels = [math.ceil(LEVELS * math.sqrt(count / total)) for count in row]
        start = 0
        for x in range(1, len(levels) + 1):
            if x == len(levels) or levels[x] != levels[start]:
                strokes.setdefault(levels[start], []).extend([(start, y + 0.5), (x, y + 0.5)])
                start = x
    strokes.pop(0, None)
    for level, points in sorted(strokes.items()):
        path = Path(points, [Path.MOVETO, Path.LINETO] * (len(points) // 2))
        shade = {"edgecolor": theme.series[0], "alpha": level / LEVELS, "linewidth": 72 * _CELL, "capstyle": "butt"}
        axes.add_patch(PathPatch(path, fill=False, **shade))
