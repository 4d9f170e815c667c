"""What an analysis found, drawn: files of its own, and panels for pages."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attngraft.drawing.sheet import TEXT_SIZE, drawing, headed, png, sheet, svg
from attngraft.drawing.sheet import Panel as Place
from attngraft.drawing.theme import MARKERS, THEMES, Theme
from attngraft.report import picture_grid
from attngraft.report.scene import ruled
from attngraft.results.analysis import AnalysisResult, Boxes, Curves, Grid, Panel, Pictures
from attngraft.results.wording import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAME = 26  #: characters of a model's or layer's name that a plot has room for
_BESIDE = 4  #: plots on one sheet
_TICKS = 16  #: names of layers below an axis; with more, some are left out


def finding_plots(finding: AnalysisResult) -> dict[str, bytes]:
    """File name to content: PNG and SVG, on white and (`-dark`) on dark. Up to four plots that follow each other stand on
    one sheet, pictures on sheets of their own; the second sheet is called `<name>-2`."""
    files: dict[str, bytes] = {}
    with drawing(text_as_paths=True):
        for number, panels in enumerate(_sheets(finding.panels), start=1):
            for theme in THEMES:
                figure = _drawn(finding, panels, theme, opaque=True)
                parts = (finding.name, str(number) if number > 1 else "", theme.name if theme.name != "light" else "")
                name = "-".join(part for part in parts if part)
                files[f"{name}.png"], files[f"{name}.svg"] = png(figure), svg(figure).encode()
    return files


def panel_drawing(finding: AnalysisResult, panel: Panel, theme: Theme) -> str:
    """One panel as SVG with real text and no background, to stand in a page."""
    with drawing(text_as_paths=False):
        return svg(_drawn(finding, [panel], theme, opaque=False))


def finding_csv(finding: AnalysisResult) -> str:
    """The finding's table."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in finding.table.columns])
    writer.writerows([["" if cell is None else cell for cell in row] for row in finding.table.rows])
    return text.getvalue()


def in_words(finding: AnalysisResult, panel: Panel) -> str:
    """A panel for those who cannot see it."""
    if isinstance(panel, Curves):
        ends = [f"{line.name} {line.y[-1]:.4g}" for line in panel.lines if line.y and line.y[-1] is not None]
        return f"{panel.title}, by {panel.x_axis}. At the end: {', '.join(ends)}."
    if isinstance(panel, Boxes):
        said = [
            f"{finding.subjects[box.subject]} {panel.ticks[box.at]}: median {box.quantiles[2]:.3g}"
            for box in panel.boxes
        ]
        return f"{panel.title}, by {panel.x_axis}. {'; '.join(said)}."
    if isinstance(panel, Grid):
        return (
            f"{panel.title}: {len(panel.rows)} x {len(panel.columns)} numbers, {panel.row_axis} by {panel.column_axis}."
        )
    return f"{panel.title}. Rows: {', '.join(row.name for row in panel.rows)}."


# --- drawing ----------------------------------------------------------------------------------------------------------


def _sheets(panels: Sequence[Panel]) -> list[list[Panel]]:
    """Pictures by themselves, plots that follow each other together."""
    found: list[list[Panel]] = []
    for panel in panels:
        beside = bool(found) and len(found[-1]) < _BESIDE and not isinstance(found[-1][-1], Pictures)
        if beside and not isinstance(panel, Pictures):
            found[-1].append(panel)
        else:
            found.append([panel])
    return found


def _drawn(finding: AnalysisResult, panels: Sequence[Panel], theme: Theme, *, opaque: bool) -> Figure:
    if isinstance(panels[0], Pictures):
        return picture_grid.draw(panels[0], theme, opaque=opaque)
    return _plots(finding, panels, theme, opaque=opaque)


def _plots(finding: AnalysisResult, panels: Sequence[Panel], theme: Theme, *, opaque: bool) -> Figure:
    figure, axes = sheet([_place(panel) for panel in panels], theme, opaque=opaque)
    colors = _Colors(finding, theme)
    for panel, place in zip(panels, axes, strict=True):
        if isinstance(panel, Curves):
            _curves(place, panel, colors)
        elif isinstance(panel, Boxes):
            _boxes(place, panel, finding.subjects, colors)
        elif isinstance(panel, Grid):
            _grid(place, panel, theme)
    return figure


def _place(panel: Panel) -> Place:
    if isinstance(panel, Grid):
        left = 0.5 + 0.068 * max((len(shorten(name, _NAME)) for name in panel.rows), default=0)
        below = 0.5 + 0.068 * max((len(shorten(name, _NAME)) for name in panel.columns), default=0)
        wide, high = (min(max(0.24 * count, 1.6), 6.0) for count in (len(panel.columns), len(panel.rows)))
        return Place(width=left + wide + 0.9, height=below + high + 0.6, left=left, right=0.9, bottom=below)
    ticks = panel.ticks if isinstance(panel, Curves | Boxes) else []
    longest = max((len(shorten(name, _NAME)) for name in ticks), default=0)
    turned = 0.062 * longest if longest > _LONG else 0.0
    names = panel.lines if isinstance(panel, Curves) else []
    legend = 0.19 * -(-len(names) // 2) if names else 0.0
    return Place(width=5.2, height=3.5 + turned + legend, left=0.75, right=0.25, bottom=0.55 + turned + legend)


_LONG = 4  #: characters of a tick's name from which on names stand upright


@dataclass(frozen=True)
class _Colors:
    """Which model has which color: the baseline is gray and the others are as in a study's report."""

    finding: AnalysisResult
    theme: Theme

    def __call__(self, subject: int) -> str:
        baseline = self.finding.baseline
        if subject == baseline:
            return self.theme.baseline
        place = subject - (baseline is not None and subject > baseline)
        return self.theme.series[place % len(self.theme.series)]


def _curves(axes: Axes, panel: Curves, colors: _Colors) -> None:
    theme = colors.theme
    for line in panel.lines:
        of_nobody = line.subject is None
        color = theme.muted if line.subject is None else colors(line.subject)
        marker = None if of_nobody or len(line.x) > 2 * _TICKS else MARKERS[(line.subject or 0) % len(MARKERS)]
        axes.plot(
            line.x,
            [np.nan if value is None else value for value in line.y],
            color=color,
            linestyle=":" if of_nobody else (0, (4, 2)) if line.dashed else "-",
            marker=marker,
            markersize=4,
            linewidth=1.6,
            label=shorten(line.name, 40),
        )
        if line.low is not None and line.high is not None:
            low, high = ([np.nan if value is None else value for value in part] for part in (line.low, line.high))
            axes.fill_between(line.x, low, high, color=color, alpha=0.15, linewidth=0)
    _finish(axes, panel, theme)


def _boxes(axes: Axes, panel: Boxes, subjects: Sequence[str], colors: _Colors) -> None:
    theme = colors.theme
    present = sorted({box.subject for box in panel.boxes})
    width = 0.7 / max(len(present), 1)
    for box in panel.boxes:
        x = box.at + width * (present.index(box.subject) - (len(present) - 1) / 2)
        color = colors(box.subject)
        least, low, middle, high, most = box.quantiles
        axes.plot([x, x], [least, most], color=color, linewidth=1, solid_capstyle="butt")
        axes.bar(x, high - low, bottom=low, width=0.75 * width, color=color, alpha=0.45, linewidth=0)
        axes.plot(
            [x - 0.37 * width, x + 0.37 * width], [middle, middle], color=color, linewidth=2, solid_capstyle="butt"
        )
        axes.plot(x, box.mean, marker="o", markersize=3, color=color)
    for place in present:
        color = colors(place)
        axes.plot([], [], color=color, linewidth=5, alpha=0.6, label=shorten(subjects[place], 40))
    _finish(axes, panel, theme)


def _finish(axes: Axes, panel: Curves | Boxes, theme: Theme) -> None:
    axes.margins(x=0.03, y=0.08)
    ruled(axes.yaxis, 1.0)
    _name_ticks(axes, panel.ticks)
    headed(axes, theme, panel.title, below=panel.x_axis)
    axes.set_ylabel(panel.y_axis, color=theme.muted, fontsize=TEXT_SIZE - 0.5)
    _legend(axes, theme)


def _name_ticks(axes: Axes, names: Sequence[str]) -> None:
    if not names:
        ruled(axes.xaxis, 1.0)
        return
    step = -(-len(names) // _TICKS)
    places = list(range(0, len(names), step))
    upright = max(len(name) for name in names) > _LONG
    axes.set_xticks(places, [shorten(names[place], _NAME) for place in places], rotation=90 if upright else 0)


def _legend(axes: Axes, theme: Theme) -> None:
    """Below the axis' name, so that it never lies on a curve."""
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    if len(unique) < 2:
        return
    figure = axes.figure
    box = axes.get_position()
    axes.legend(
        unique.values(),
        unique.keys(),
        loc="lower left",
        bbox_to_anchor=(box.x0 - 0.02, 0.0),
        bbox_transform=figure.transFigure,
        ncols=2,
        frameon=False,
        fontsize=TEXT_SIZE - 1,
        labelcolor=theme.ink,
        handlelength=2.6,
        columnspacing=1.2,
        borderaxespad=0.2,
    )


def _grid(axes: Axes, panel: Grid, theme: Theme) -> None:
    cells = np.array(panel.cells, dtype=float)
    low, high = picture_grid.limits(cells, panel.low, panel.high, diverging=panel.diverging)
    drawn = axes.imshow(cells, cmap=picture_grid.colors(diverging=panel.diverging), vmin=low, vmax=high, aspect="auto")
    axes.grid(visible=False)
    for axis, names in ((axes.xaxis, panel.columns), (axes.yaxis, panel.rows)):
        step = -(-len(names) // 40)
        places = list(range(0, len(names), step))
        axis.set_ticks(places, [shorten(names[place], _NAME) for place in places])
    axes.tick_params(axis="x", rotation=90)
    headed(axes, theme, panel.title, below=panel.column_axis)
    axes.set_ylabel(panel.row_axis, color=theme.muted, fontsize=TEXT_SIZE - 0.5)
    bar = axes.figure.colorbar(drawn, cax=axes.inset_axes((1.03, 0.0, 0.035, 1.0)))
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, colors=theme.muted, labelsize=TEXT_SIZE - 1)
    ruled(bar.ax.yaxis, 1.0)
