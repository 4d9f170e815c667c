"""What all panels share: a study in a theme, round ticks, and names set beside the points that they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attngraft.drawing.sheet import LINE_HEIGHT, TEXT_SIZE, size_in_points, spread
from attngraft.drawing.theme import Look, Theme, looks
from attngraft.results.study import StudyResult, VariantResult
from attngraft.results.wording import minus, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis

LineStyle = str | tuple[float, tuple[float, ...]]

NAME_WIDTH = 22  #: characters of a variant's name that a plot has room for
STEPS = (1, 2, 5, 10)  #: ticks that read easily


@dataclass(frozen=True)
class Scene:
    """A study in one theme."""

    result: StudyResult
    theme: Theme

    @property
    def dressed(self) -> list[tuple[VariantResult, Look]]:
        return list(zip(self.result.variants, looks(self.result), strict=True))


def name_points(
    axes: Axes, scene: Scene, points: Sequence[tuple[str, Look, float, float]], *, leader: LineStyle = "-"
) -> None:
    """The names of points, in the right margin, each tied to its point by a thin line of its color."""
    axes.set_ylim(axes.get_ylim())
    width, height = size_in_points(axes)
    to_axes = axes.transData + axes.transAxes.inverted()
    targets = [float(to_axes.transform((x, y))[1]) for _, _, x, y in points]
    heights = spread(targets, LINE_HEIGHT / height, low=0.0, high=1.0)
    for (name, look, x, y), level in zip(points, heights, strict=True):
        color = look.color(scene.theme)
        axes.annotate(
            shorten(name, NAME_WIDTH),
            xy=(x, y),
            xytext=(1 + 17 / width, level),
            textcoords="axes fraction",
            color=scene.theme.ink,
            fontsize=TEXT_SIZE - 0.5,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": color,
                "linestyle": leader,
                "linewidth": 0.8,
                "relpos": (0, 0.5),
                "shrinkB": 4,
            },
        )


def ruled(axis: XAxis | YAxis, scale: float) -> None:
    """A few round ticks, written times `scale`, a power of ten."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=6, steps=STEPS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: minus(f"{scale * value:g}")))


def names_margin(result: StudyResult) -> float:
    """Inches that the longest name needs in the right margin."""
    longest = max((len(shorten(variant.name, NAME_WIDTH)) for variant in result.variants), default=0)
    return 0.36 + 0.076 * longest
