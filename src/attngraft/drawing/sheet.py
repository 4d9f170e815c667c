"""Figures of panels side by side, saved as PNG and SVG files or embedded in a page as SVG.

Drawing does not use pyplot or the user's matplotlib settings, and is reproducible byte for byte.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator
from scipy.optimize import isotonic_regression

from attngraft.drawing.theme import LIGHT, THEMES, Theme
from attngraft.results.wording import minus, shown

TEXT_SIZE = 9.0  #: points
LINE_HEIGHT = 12.5  #: points between the baselines of stacked labels
STEPS = (1, 2, 5, 10)  #: distances between ticks, times a power of ten


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """One panel of a figure: size in inches with all margins, drawing function, and text alternative."""

    name: str
    alt: str
    draw: Callable[[Axes, Theme], None]
    width: float
    height: float
    left: float = 0.55
    right: float = 0.2
    bottom: float = 0.5
    top: float = 0.45
    titles: Mapping[str, str] = field(default_factory=dict)  #: gid of an artist -> text to show on hover, in pages


def figure_files(stem: str, drawings: Sequence[Drawing], themes: Sequence[Theme] = THEMES) -> dict[str, bytes]:
    """Draw panels side by side and return the files' contents by name.

    Returns:
        `<stem>.png` and `<stem>.svg`, and `<stem>-dark.png` and `<stem>-dark.svg` for the dark theme.
    """
    files: dict[str, bytes] = {}
    with settings(text_as_paths=True):
        for theme in themes:
            figure, _ = sheet(drawings, theme, opaque=True)
            name = stem if theme is LIGHT else f"{stem}-{theme.name}"
            files[f"{name}.png"] = _saved(figure, "png", {"Software": None}, dpi=180)
            files[f"{name}.svg"] = _saved(figure, "svg", {"Date": None, "Creator": None})
    return files


def inline_svg(drawing: Drawing, *, prefix: str = "") -> Markup:
    """Draw one panel as SVG to embed in HTML, without a background.

    Theme colors become `var(--role)`, so that the page can switch between light and dark. Ids get `prefix` and the drawing's
    name as a prefix. Namespaces, metadata and style sheets, which would affect the page, are removed. Fonts are those of the
    page.
    """
    with settings(text_as_paths=False):
        root = ElementTree.fromstring(
            _saved(sheet([drawing], LIGHT, opaque=False)[0], "svg", {"Date": None, "Creator": None})
        )
    variables = {color: f"var(--{role})" for role, color in LIGHT.colors.items()}

    def attribute(key: str, value: str) -> str:
        if key == "id":
            return f"{name}-{value}"
        if key == "href" and value.startswith("#"):
            return f"#{name}-{value[1:]}"
        if key == "d":
            return re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), value)
        value = re.sub(r"url\(#([^)]*)\)", rf"url(#{name}-\1)", value)
        return re.sub(r"#[0-9a-f]{6}\b", lambda found: variables.get(found[0], found[0]), value)

    name = f"{prefix}{drawing.name}"
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for element in list(root.iter()):
        if (hint := drawing.titles.get(element.get("id", ""))) is not None:
            title = ElementTree.Element("title")
            title.text = minus(shown(hint))
            element.insert(0, title)
    for element in root.iter():
        element.tag = _local(element.tag)
        if element.tag not in ("text", "title") and not (element.text or "").strip():
            element.text = None  # remove indentation
        element.tail = None
        element.attrib = {_local(key): attribute(_local(key), value) for key, value in element.attrib.items()}
    root.attrib = {
        "viewBox": root.get("viewBox", ""),
        "role": "img",
        "aria-label": minus(shown(drawing.alt)),
        "stroke-linejoin": "round",
    }
    return Markup(ElementTree.tostring(root, encoding="unicode", short_empty_elements=False))


def sheet(drawings: Sequence[Drawing], theme: Theme, *, opaque: bool) -> tuple[Figure, list[Axes]]:
    """Draw panels side by side.

    Sizes are exact, so that labels can be placed before the figure is rendered.
    """
    width, height = sum(drawing.width for drawing in drawings), max(drawing.height for drawing in drawings)
    figure = Figure(figsize=(width, height), facecolor=theme.surface if opaque else "none")
    FigureCanvasAgg(figure)
    all_axes, start = [], 0.0
    for drawing in drawings:
        inner = drawing.width - drawing.left - drawing.right, height - drawing.bottom - drawing.top
        axes = figure.add_axes(
            ((start + drawing.left) / width, drawing.bottom / height, inner[0] / width, inner[1] / height)
        )
        axes.set_facecolor("none")
        axes.spines["bottom"].set_color(theme.line)
        axes.tick_params(length=0, colors=theme.muted, labelsize=TEXT_SIZE - 0.5, pad=5)
        axes.grid(axis="y", color=theme.line, linewidth=0.6)
        drawing.draw(axes, theme)
        all_axes.append(axes)
        start += drawing.width
    return figure, all_axes


@contextmanager
def settings(*, text_as_paths: bool) -> Iterator[None]:
    """Apply matplotlib's defaults and our settings within the block.

    Text is never parsed as mathematics, because names and titles are chosen by the user.
    """
    ours: dict[str, Any] = {
        **dict.fromkeys(("axes.spines.left", "axes.spines.right", "axes.spines.top"), False),
        "axes.axisbelow": True,
        "font.family": ["DejaVu Sans"],
        "font.size": TEXT_SIZE,
        "image.composite_image": False,
        "svg.hashsalt": "attngraft",
        "svg.fonttype": "path" if text_as_paths else "none",
        "text.parse_math": False,
    }
    with style.context(["default", ours]), warnings.catch_warnings():
        # characters missing from the font are drawn as boxes in plots, but appear correctly in pages and tables
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _saved(figure: Figure, kind: str, metadata: dict[str, None], **options: Any) -> bytes:
    for text in figure.findobj(Text):
        text.set_text("\n".join(map(shown, text.get_text().split("\n"))))
    stream = io.BytesIO()
    figure.savefig(stream, format=kind, metadata=metadata, **options)
    return stream.getvalue()


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


# --- parts of panels --------------------------------------------------------------------------------------------------


def set_titles(axes: Axes, theme: Theme, title: str, *, below: str = "", beside: str = "") -> None:
    """Set a panel's title, at the top left, and its axis labels."""
    axes.set_title(title, loc="left", color=theme.ink, fontsize=TEXT_SIZE + 0.5, fontweight="bold", pad=12)
    axes.set_xlabel(below, color=theme.muted, fontsize=TEXT_SIZE - 0.5, labelpad=5)
    if beside:
        axes.set_ylabel(beside, color=theme.muted, fontsize=TEXT_SIZE - 0.5)


def set_round_ticks(axis: XAxis | YAxis, scale: float = 1.0) -> None:
    """Set a few ticks at round values, labeled with the value times `scale`, a power of ten."""
    axis.set_major_locator(MaxNLocator(nbins=6, steps=STEPS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: minus(f"{scale * value:g}")))


def size_in_points(axes: Axes) -> tuple[float, float]:
    """Return the width and height of the area inside of the axes."""
    inside = axes.get_window_extent()
    dots = axes.figure.dpi / 72
    return float(inside.width) / dots, float(inside.height) / dots


def spread(targets: Sequence[float], gap: float, *, low: float, high: float) -> list[float]:
    """Return positions between `low` and `high`, close to `targets` and at least `gap` apart.

    Positions are in the order of the targets. Neighbors that would overlap form a group that is centered on the mean of
    its targets (pool adjacent violators). If the positions do not fit between the limits, they are spaced evenly.
    """
    if (len(targets) - 1) * gap > high - low:
        gap = (high - low) / (len(targets) - 1)
    order = np.argsort(targets, kind="stable")
    offsets = gap * np.arange(len(targets))
    shifted = isotonic_regression(np.asarray(targets)[order] - offsets).x
    placed = np.empty(len(targets))
    placed[order] = shifted.clip(low, max(low, high - (len(targets) - 1) * gap)) + offsets
    return [float(position) for position in placed]
