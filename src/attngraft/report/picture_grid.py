"""Rows of pictures: images, maps of numbers as colors, maps laid over images."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from attngraft.drawing.sheet import TEXT_SIZE
from attngraft.drawing.theme import Theme
from attngraft.results.analysis import Picture, Pictures
from attngraft.results.wording import shorten

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

SIDE = 1.15  #: inches of a picture
GAP = 0.08
CAPTION = 0.2  #: inches for a line of text
_LONG = 2  #: how many times longer than high a map may be before it is stretched to a square
_PIXELS = 180  #: of a picture's longer side, at least: small maps stay squares when a viewer smooths pictures


def draw(panel: Pictures, theme: Theme, *, opaque: bool) -> Figure:
    """A sheet with nothing but these pictures, row under row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = max((len(row.pictures) for row in panel.rows), default=0)
    captions = any(picture.caption for row in panel.rows for picture in row.pictures)
    left = 0.15 + 0.072 * max((len(shorten(row.name, 24)) for row in panel.rows), default=0)
    step = SIDE + (CAPTION if captions else 0) + GAP
    width = max(left + columns * (SIDE + GAP) + 0.1, 0.2 + 0.085 * len(panel.title))
    height = 0.45 + len(panel.rows) * step
    figure = Figure(figsize=(width, height), facecolor=theme.surface if opaque else "none")
    FigureCanvasAgg(figure)
    figure.text(
        0.1 / width, 1 - 0.12 / height, panel.title, color=theme.ink, fontsize=TEXT_SIZE + 0.5, weight="bold", va="top"
    )
    for number, row in enumerate(panel.rows):
        top = height - 0.45 - number * step
        middle = top - SIDE / 2
        figure.text(
            0.1 / width, middle / height, shorten(row.name, 24), color=theme.ink, fontsize=TEXT_SIZE - 0.5, va="center"
        )
        for place, picture in enumerate(row.pictures):
            x = left + place * (SIDE + GAP)
            axes = figure.add_axes((x / width, (top - SIDE) / height, SIDE / width, SIDE / height))
            drawn = pixels(picture, panel)
            long = picture.image is None and max(drawn.shape[:2]) > _LONG * min(drawn.shape[:2])
            axes.imshow(drawn, interpolation="nearest", aspect="auto" if long else "equal")
            axes.set_axis_off()
            if picture.caption:
                at = (x + SIDE / 2) / width, (top - SIDE - 0.03) / height
                figure.text(
                    *at, shorten(picture.caption, 20), color=theme.muted, fontsize=TEXT_SIZE - 2, ha="center", va="top"
                )
    return figure


def pixels(picture: Picture, panel: Pictures) -> np.ndarray:
    """(rows, columns, 3) bytes: the map in colors, the image, or, where there are both, the map over the image in gray."""
    image = None
    if picture.image is not None:
        with Image.open(io.BytesIO(base64.b64decode(picture.image))) as opened:
            image = np.asarray(opened.convert("RGB"))
    if picture.values is None:
        return np.zeros((8, 8, 3), np.uint8) if image is None else _enlarged(image)
    values = np.array(picture.values, dtype=float)
    low, high = limits(values, panel.low, panel.high, diverging=panel.diverging)
    shares = np.clip((np.nan_to_num(values, nan=low) - low) / (high - low), 0, 1)
    colored = (colors(diverging=panel.diverging)(shares)[..., :3] * 255).round().astype(np.uint8)
    if image is None:
        return _enlarged(colored)
    size = image.shape[1], image.shape[0]
    heat = np.asarray(Image.fromarray(colored).resize(size, Image.Resampling.NEAREST))
    gray = image.mean(axis=2, keepdims=True)
    return _enlarged((0.45 * gray + 0.55 * heat).round().astype(np.uint8))


def colors(*, diverging: bool) -> Colormap:
    """Of maps: from dark to light; around 0 in two colors."""
    from matplotlib import colormaps

    return colormaps["RdBu_r" if diverging else "viridis"]


def limits(cells: np.ndarray, low: float | None, high: float | None, *, diverging: bool) -> tuple[float, float]:
    """What the ends of the colors stand for."""
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
