"""The report's figures: which there are for a study, what each says in words, and their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from attngraft.drawing.sheet import LINE_HEIGHT, Panel, drawing, png, sheet, svg
from attngraft.drawing.theme import THEMES, Theme
from attngraft.report.curves import Band, curve_bands, difference_bands, draw_bands
from attngraft.report.epochs import compared, draw_epochs, epochs_sentence
from attngraft.report.forest import draw_forest
from attngraft.report.scene import NAME_WIDTH, Scene, names_margin
from attngraft.report.tradeoff import COST_AXES, cost_points, draw_cost
from attngraft.results import wording
from attngraft.results.study import StudyResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURES = ("differences", "curves", "epochs", "cost", "cost-more")
#: every file that `plot_files` may give
FILES = frozenset(f"{name}{theme}.{kind}" for name in FIGURES for theme in ("", "-dark") for kind in ("png", "svg"))


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """One panel: where it stands on a sheet, how it is drawn, and its content for those who cannot see it."""

    name: str
    alt: str
    panel: Panel
    draw: Callable[[Axes, Scene], None]


@dataclass(frozen=True, kw_only=True)
class StudyFigure:
    """Panels that belong together: one file in `plots/`, one section of the page."""

    name: str
    drawings: Sequence[Drawing]


def study_figures(result: StudyResult) -> list[StudyFigure]:
    """The figures of `FIGURES` that this study has data for."""
    drawn = (
        _forest(result),
        _curves(result),
        _epochs(result),
        _costs(result, ("parameters", "macs", "train_time")),
        _costs(result, ("inference_time", "memory")),
    )
    found = [StudyFigure(name=name, drawings=drawings) for name, drawings in zip(FIGURES, drawn, strict=True)]
    return [figure for figure in found if figure.drawings]


def plot_files(result: StudyResult) -> dict[str, bytes]:
    """File name to content: every figure as PNG and SVG, on white (`name.png`) and on dark (`name-dark.png`)."""
    files: dict[str, bytes] = {}
    with drawing(text_as_paths=True):
        for figure in study_figures(result):
            for theme in THEMES:
                canvas, axes = sheet([d.panel for d in figure.drawings], theme, opaque=True)
                for drawing_, place in zip(figure.drawings, axes, strict=True):
                    drawing_.draw(place, Scene(result, theme))
                stem = figure.name if theme.name == "light" else f"{figure.name}-{theme.name}"
                files[f"{stem}.png"], files[f"{stem}.svg"] = png(canvas), svg(canvas).encode()
    return files


def panel_svg(result: StudyResult, drawing_: Drawing, theme: Theme) -> str:
    """One panel alone as SVG with real text and no background, to stand in a page."""
    with drawing(text_as_paths=False):
        canvas, (axes,) = sheet([drawing_.panel], theme, opaque=False)
        drawing_.draw(axes, Scene(result, theme))
        return svg(canvas)


# --- the panels of each figure ------------------------------------------------------------------------------------


def _forest(result: StudyResult) -> list[Drawing]:
    compared = [v for v in result.variants if v.difference is not None]
    if not compared:
        return []
    style = wording.metric_format(result)
    said = [
        f"{v.name}: {wording.difference_sentence(v.difference, style)}, {v.difference.verdict}"
        for v in compared
        if v.difference is not None
    ]
    longest = max(len(wording.shorten(v.name, NAME_WIDTH)) for v in compared)
    place = Panel(width=8.4, height=1.25 + 0.42 * len(compared), left=0.3 + 0.083 * longest, right=2.05, bottom=0.6)
    alt = f"Differences to the baseline. {'; '.join(map(wording.shown, said))}."
    return [Drawing(name="forest", alt=alt, panel=place, draw=draw_forest)]


def _curves(result: StudyResult) -> list[Drawing]:
    style = wording.metric_format(result)
    validation = f"val/{result.metric}"
    gap = f"difference to the baseline ({style.points})" if style.points else "difference to the baseline"
    parts = [
        ("metric", f"{style.title}, validation", curve_bands(result, validation), style.scale, False),
        ("difference", gap, difference_bands(result, validation), style.scale, True),
        ("train-loss", "training loss", curve_bands(result, "train/loss"), 1.0, False),
    ]
    place = Panel(width=4.1 + names_margin(result), height=_height(result), right=names_margin(result))
    return [
        Drawing(
            name=name,
            alt=f"{title} by epoch. {_ends(result, bands, scale)}",
            panel=place,
            draw=partial(draw_bands, bands=bands, title=title, scale=scale, zero=zero),
        )
        for name, title, bands, scale, zero in parts
        if any(bands)
    ]


def _epochs(result: StudyResult) -> list[Drawing]:
    rows = compared(result)
    if not rows:
        return []
    said = [wording.shown(epochs_sentence(variant, reached, result.epochs)) for _, variant, reached in rows]
    longest = max(len(wording.shorten(variant.name, NAME_WIDTH)) for _, variant, _ in rows)
    place = Panel(width=8.4, height=1.25 + 0.42 * len(rows), left=0.3 + 0.083 * longest, right=1.75, bottom=0.6)
    alt = f"Epochs to the baseline's best mean over those of the baseline itself. {'. '.join(said)}."
    return [Drawing(name="epochs", alt=alt, panel=place, draw=draw_epochs)]


def _height(result: StudyResult) -> float:
    """Inches: enough for every variant's name in the margin."""
    return max(3.3, 0.95 + len(result.variants) * LINE_HEIGHT / 72)


def _ends(result: StudyResult, bands: Sequence[Band | None], scale: float) -> str:
    ends = [
        f"{wording.shown(variant.name)} {scale * band.mean[-1]:.4g}"
        for variant, band in zip(result.variants, bands, strict=True)
        if band is not None
    ]
    return f"Means over seeds at the last epoch: {', '.join(ends)}."


def _costs(result: StudyResult, names: Sequence[str]) -> list[Drawing]:
    style, drawings, margin = wording.metric_format(result), [], names_margin(result)
    for name in names:
        axis = COST_AXES[name]
        points = cost_points(result, axis)
        if sum(point is not None for point in points) < 2:
            continue
        said = [
            f"{wording.shown(v.name)} {wording.ratio(p.point, exact=True)}, {style.value(v.last[result.metric].mean)}"
            for v, p in zip(result.variants, points, strict=True)
            if p is not None
        ]
        drawings.append(
            Drawing(
                name=f"cost-{name.replace('_', '-')}",
                alt=f"{style.title} against {axis.title} (ratio to the baseline): {'; '.join(said)}.",
                panel=Panel(width=2.65 + margin, height=_height(result), right=margin, bottom=0.55),
                draw=partial(draw_cost, points=points, axis=axis),
            )
        )
    return drawings
