"""Panels of analysis results: curves, distributions, matrices and rows of pictures."""

import base64
import io
from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.colors import Colormap
from PIL import Image

from attngraft.drawing.sheet import TEXT_SIZE, Drawing, figure_files, set_round_ticks, set_titles, size_in_points
from attngraft.drawing.theme import MARKERS, Theme
from attngraft.image_files import open_image
from attngraft.results.analysis import AnalysisResult, Boxes, Curves, Grid, Panel, Picture, Pictures
from attngraft.results.wording import shorten, shown

PANELS_PER_SHEET = 4

_NAME = 26  #: number of characters of a model's or layer's name that fit on a plot
_HORIZONTAL = 4  #: tick labels with more characters are rotated,
_IN_A_ROW = 44  #: unless this many characters of all labels fit side by side
_TICKS = 16  #: largest number of tick labels of layers on an axis
_SIDE = 1.15  #: side of a picture in inches
_GAP = 0.08
_CAPTION = 0.2
_STRETCHED = 2  #: aspect ratio from which a map is stretched to a square
_PIXELS = 180  #: smallest length of a picture's longer side in pixels, so that viewers do not blur small maps


def analysis_plots(result: AnalysisResult) -> dict[str, bytes]:
    """Draw a result as light and dark PNG and SVG files; return their contents by name.

    Up to four consecutive panels share a sheet; each panel of pictures is on a separate sheet. Sheets after the first are
    named `<name>-2`, ...
    """
    sheets: list[list[Panel]] = []
    for panel in result.panels:
        apart = isinstance(panel, Pictures) or not sheets or isinstance(sheets[-1][-1], Pictures)
        if apart or len(sheets[-1]) == PANELS_PER_SHEET:
            sheets.append([])
        sheets[-1].append(panel)
    files: dict[str, bytes] = {}
    for number, panels in enumerate(sheets, start=1):
        stem = result.name if number == 1 else f"{result.name}-{number}"
        files |= figure_files(stem, [panel_drawing(result, panel) for panel in panels])
    return files


def panel_drawing(result: AnalysisResult, panel: Panel, *, name: str = "") -> Drawing:
    """Return the drawing of one panel of a result."""
    if isinstance(panel, Curves):
        return curves_drawing(panel, baseline=result.baseline, name=name)
    if isinstance(panel, Boxes):
        medians = [
            f"{result.subjects[b.subject]} {panel.ticks[b.at]}: median {b.quantiles[2]:.3g}" for b in panel.boxes
        ]
        alt = f"{panel.title}, by {panel.x_axis}. {'; '.join(medians)}."
        return _plot(panel, name, alt, partial(_draw_boxes, panel=panel, result=result), legend=0)
    if isinstance(panel, Grid):
        left, below = (0.5 + 0.068 * _longest(names) for names in (panel.rows, panel.columns))
        wide, high = (min(max(0.24 * count, 1.6), 6.0) for count in (len(panel.columns), len(panel.rows)))
        size = f"{len(panel.rows)} x {len(panel.columns)} numbers"
        return Drawing(
            name=name,
            alt=shown(f"{panel.title}: {size}, {panel.row_axis} by {panel.column_axis}."),
            draw=partial(_draw_grid, panel=panel),
            width=left + wide + 0.9,
            height=below + high + 0.6,
            left=left,
            right=0.9,
            bottom=below,
        )
    columns = max((len(row.pictures) for row in panel.rows), default=0)
    left, step = _picture_layout(panel)
    return Drawing(
        name=name,
        alt=shown(f"{panel.title}. Rows: {', '.join(row.name for row in panel.rows)}."),
        draw=partial(_draw_pictures, panel=panel),
        width=max(left + columns * (_SIDE + _GAP) + 0.1, 0.2 + 0.085 * len(panel.title)),
        height=0.45 + len(panel.rows) * step,
        left=0.0,
        right=0.0,
        bottom=0.0,
        top=0.0,
    )


# --- curves and distributions -----------------------------------------------------------------------------------------


def curves_drawing(panel: Curves, *, baseline: int | None, name: str = "") -> Drawing:
    """Return the drawing of curves; `baseline` is the index of the model to draw in gray."""
    ends = [f"{line.name} {line.y[-1]:.4g}" for line in panel.lines if line.y and line.y[-1] is not None]
    alt = f"{panel.title}, by {panel.x_axis}. At the end: {', '.join(ends)}."
    return _plot(panel, name, alt, partial(_draw_curves, panel=panel, baseline=baseline), legend=len(panel.lines))


def _plot(panel: Curves | Boxes, name: str, alt: str, draw: partial[None], *, legend: int) -> Drawing:
    below = (0.062 * _longest(panel.ticks) if _rotated(panel.ticks) else 0.0) + 0.19 * -(-legend // 2)
    return Drawing(
        name=name,
        alt=shown(alt),
        draw=draw,
        width=5.2,
        height=3.5 + below,
        left=0.75,
        right=0.25,
        bottom=0.55 + below,
    )


def _model_color(baseline: int | None, theme: Theme, subject: int) -> str:
    """Return a model's color as in figures of studies: gray for the baseline, otherwise by index."""
    if subject == baseline:
        return theme.baseline
    index = subject - (baseline is not None and subject > baseline)
    return theme.series[index % len(theme.series)]


def _draw_curves(axes: Axes, theme: Theme, *, panel: Curves, baseline: int | None) -> None:
    for line in panel.lines:
        reference = line.subject is None
        color = theme.muted if line.subject is None else _model_color(baseline, theme, line.subject)
        axes.plot(
            line.x,
            np.array(line.y, dtype=float),
            color=color,
            linestyle=":" if reference else (0, (4, 2)) if line.dashed else "-",
            marker=None if reference or len(line.x) > 2 * _TICKS else MARKERS[(line.subject or 0) % len(MARKERS)],
            markersize=4,
            linewidth=1.6,
            label=shorten(line.name, 40),
        )
        if line.low is not None and line.high is not None:
            low, high = np.array([line.low, line.high], dtype=float)
            axes.fill_between(line.x, low, high, color=color, alpha=0.15, linewidth=0)
    _finish_plot(axes, theme, panel)


def _draw_boxes(axes: Axes, theme: Theme, *, panel: Boxes, result: AnalysisResult) -> None:
    present = sorted({box.subject for box in panel.boxes})
    width = 0.7 / max(len(present), 1)
    for box in panel.boxes:
        x = box.at + width * (present.index(box.subject) - (len(present) - 1) / 2)
        half, color = 0.37 * width, _model_color(result.baseline, theme, box.subject)
        least, low, median, high, most = box.quantiles
        axes.plot([x, x], [least, most], color=color, linewidth=1, solid_capstyle="butt")
        axes.bar(x, high - low, bottom=low, width=0.75 * width, color=color, alpha=0.45, linewidth=0)
        axes.plot([x - half, x + half], [median, median], color=color, linewidth=2, solid_capstyle="butt")
        axes.plot(x, box.mean, marker="o", markersize=3, color=color)
    for subject in present:
        label = shorten(result.subjects[subject], 40)
        axes.plot([], [], color=_model_color(result.baseline, theme, subject), linewidth=5, alpha=0.6, label=label)
    _finish_plot(axes, theme, panel)


def _finish_plot(axes: Axes, theme: Theme, panel: Curves | Boxes) -> None:
    axes.margins(x=0.03, y=0.08)
    set_round_ticks(axes.yaxis)
    if panel.ticks:
        _name_ticks(axes.xaxis, panel.ticks, _TICKS)
        axes.tick_params(axis="x", rotation=90 if _rotated(panel.ticks) else 0)
    else:
        set_round_ticks(axes.xaxis)
    set_titles(axes, theme, panel.title, below=panel.x_axis, beside=panel.y_axis)
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    if len(unique) > 1:  # below the axis label, where it does not cover any curve
        axes.legend(
            unique.values(),
            unique.keys(),
            loc="lower left",
            bbox_to_anchor=(axes.get_position().x0 - 0.02, 0.0),
            bbox_transform=axes.figure.transFigure,
            ncols=2,
            frameon=False,
            fontsize=TEXT_SIZE - 1,
            labelcolor=theme.ink,
            handlelength=2.6,
            columnspacing=1.2,
            borderaxespad=0.2,
        )


def _longest(names: Sequence[str]) -> int:
    return max((len(shorten(name, _NAME)) for name in names), default=0)


def _rotated(ticks: Sequence[str]) -> bool:
    return _longest(ticks) > _HORIZONTAL and _longest(ticks) * min(len(ticks), _TICKS) > _IN_A_ROW


def _name_ticks(axis: XAxis | YAxis, names: Sequence[str], most: int) -> None:
    step = -(-len(names) // most)
    axis.set_ticks(range(0, len(names), step), [shorten(name, _NAME) for name in names[::step]])


# --- matrices and pictures --------------------------------------------------------------------------------------------


def _draw_grid(axes: Axes, theme: Theme, *, panel: Grid) -> None:
    cells = np.array(panel.cells, dtype=float)
    low, high = color_limits(cells, panel.low, panel.high, diverging=panel.diverging)
    image = axes.imshow(cells, cmap=colormap(diverging=panel.diverging), vmin=low, vmax=high, aspect="auto")
    axes.grid(visible=False)
    for axis, names in ((axes.xaxis, panel.columns), (axes.yaxis, panel.rows)):
        _name_ticks(axis, names, 40)
    axes.tick_params(axis="x", rotation=90)
    set_titles(axes, theme, panel.title, below=panel.column_axis, beside=panel.row_axis)
    bar = axes.figure.colorbar(image, cax=axes.inset_axes((1.03, 0.0, 0.035, 1.0)))
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, colors=theme.muted, labelsize=TEXT_SIZE - 1)
    set_round_ticks(bar.ax.yaxis)


def _picture_layout(panel: Pictures) -> tuple[float, float]:
    """Return the width of the row names and the height of a row, in inches."""
    left = 0.15 + 0.072 * max((len(shorten(row.name, 24)) for row in panel.rows), default=0)
    captions = any(picture.caption for row in panel.rows for picture in row.pictures)
    return left, _SIDE + (_CAPTION if captions else 0) + _GAP


def _draw_pictures(axes: Axes, theme: Theme, *, panel: Pictures) -> None:
    """Draw all pictures in one pair of axes with inches as units."""
    axes.set_axis_off()
    width, height = (side / 72 for side in size_in_points(axes))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.text(0.1, 0.12, panel.title, color=theme.ink, fontsize=TEXT_SIZE + 0.5, weight="bold", va="top")
    left, step = _picture_layout(panel)
    for number, row in enumerate(panel.rows):
        top = 0.45 + number * step
        name = shorten(row.name, 24)
        axes.text(0.1, top + _SIDE / 2, name, color=theme.ink, fontsize=TEXT_SIZE - 0.5, va="center")
        for index, picture in enumerate(row.pictures):
            drawn = pixels(picture, panel)
            rows, columns = drawn.shape[:2]
            if picture.image is None and max(rows, columns) > _STRETCHED * min(rows, columns):
                rows = columns = 1
            x = left + index * (_SIDE + _GAP) + _SIDE / 2
            half, tall = (_SIDE / 2 * side / max(rows, columns) for side in (columns, rows))
            y = top + _SIDE / 2
            axes.imshow(drawn, interpolation="nearest", aspect="auto", extent=(x - half, x + half, y + tall, y - tall))
            if picture.caption:
                caption = shorten(picture.caption, 20)
                size = TEXT_SIZE - 2
                axes.text(x, top + _SIDE + 0.03, caption, color=theme.muted, fontsize=size, ha="center", va="top")


def pixels(picture: Picture, panel: Pictures) -> np.ndarray:
    """Render a picture as RGB pixels, uint8, (rows, columns, 3).

    The result is the image, the map in colors, or the map in colors over the gray image.
    """
    image = None
    if picture.image is not None:
        with open_image(io.BytesIO(base64.b64decode(picture.image))) as opened:
            image = np.asarray(opened.convert("RGB"))
    if picture.values is None:
        return np.zeros((8, 8, 3), np.uint8) if image is None else _enlarged(image)
    values = np.array(picture.values, dtype=float)
    low, high = color_limits(values, panel.low, panel.high, diverging=panel.diverging)
    shares = np.clip((np.nan_to_num(values, nan=low) - low) / (high - low), 0, 1)
    colored = (colormap(diverging=panel.diverging)(shares)[..., :3] * 255).round().astype(np.uint8)
    if image is None:
        return _enlarged(colored)
    size = image.shape[1], image.shape[0]
    heat = np.asarray(Image.fromarray(colored).resize(size, Image.Resampling.NEAREST))
    gray = image.mean(axis=2, keepdims=True)
    return _enlarged((0.45 * gray + 0.55 * heat).round().astype(np.uint8))


def colormap(*, diverging: bool) -> Colormap:
    return colormaps["RdBu_r" if diverging else "viridis"]


def color_limits(cells: np.ndarray, low: float | None, high: float | None, *, diverging: bool) -> tuple[float, float]:
    """Return the values at the ends of the color map, by default the extremes of the finite cells."""
    finite = cells[np.isfinite(cells)]
    least, most = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    low, high = least if low is None else low, most if high is None else high
    if diverging:
        reach = max(abs(low), abs(high)) or 1.0
        return -reach, reach
    return low, high if high > low else low + 1.0


def _enlarged(image: np.ndarray) -> np.ndarray:
    times = max(1, -(-_PIXELS // max(image.shape[:2])))
    return image.repeat(times, axis=0).repeat(times, axis=1)
