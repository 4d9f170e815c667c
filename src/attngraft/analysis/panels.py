"""Conversion of tensors to the data of an analysis result: images, maps, tables."""

import base64
import io
from collections.abc import Iterable, Iterator, Sequence

from PIL import Image, ImageDraw
from torch import Tensor

from attngraft.analysis.request import ShownImage
from attngraft.errors import RecordError
from attngraft.results.analysis import Picture, PictureRow
from attngraft.results.sections import Cell, Column, Table

_MARKED_SIDE = 240  #: smallest length in pixels of the longer side of an image with marks
_BACKDROP_SIDE = 112  #: largest length in pixels of the longer side of the gray image under a map
_DIGITS = 6  #: significant digits of a map's numbers; few enough to keep files readable

Values = list[list[float]]  #: numbers of a map, row by row


def png(view: Tensor) -> str:
    """Return an image (C, H, W), uint8 with one or three channels, as base64-encoded PNG."""
    return _encoded(_image(view))


def backdrop(view: Tensor) -> str:
    """Return a gray image to draw under maps, small because a result contains a copy for each map."""
    image = _image(view).convert("L")
    image.thumbnail((_BACKDROP_SIDE, _BACKDROP_SIDE))
    return _encoded(image)


def marked(view: Tensor, positions: Sequence[tuple[float, float]]) -> str:
    """Return the image with the numbers 1, 2, ... drawn at `positions`.

    Positions are (row, column), as fractions of the image's sides.
    """
    image = _image(view).convert("RGB")
    factor = -(-_MARKED_SIDE // max(image.size))
    image = image.resize((factor * image.width, factor * image.height), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(image)
    for number, (row, column) in enumerate(positions, start=1):
        draw.text(
            (column * image.width, row * image.height),
            str(number),
            fill="white",
            stroke_fill="black",
            stroke_width=2,
            anchor="mm",
            font_size=max(image.size) / 10,
        )
    return _encoded(image)


def _image(view: Tensor) -> Image.Image:
    return Image.fromarray(view.movedim(0, -1).squeeze(-1).numpy())


def _encoded(image: Image.Image) -> str:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def image_row(images: Iterable[ShownImage]) -> PictureRow:
    """Return the first row of a panel: the images, with their names as captions."""
    return PictureRow(name="", pictures=[Picture(caption=image.name, image=png(image.view)) for image in images])


def map_values(tensor: Tensor) -> Values:
    """Return the numbers of a map (rows, columns).

    Raises:
        RecordError: some values are NaN or infinite.
    """
    check_finite(tensor, "the values contain")
    return [[float(f"{value:.{_DIGITS}g}") for value in row] for row in tensor.double().cpu().tolist()]


def check_finite(tensor: Tensor, what: str) -> None:
    """Check that all values are finite; `what` starts the message, for example "the maps contain".

    Raises:
        RecordError: some values are NaN or infinite.
    """
    if not bool(tensor.isfinite().all()):
        raise RecordError(f"{what} NaN or infinity: the model diverged in training, or its activations overflow")


def cells(values: Values) -> Iterator[tuple[int, int, float]]:
    """Yield (row, column, value) of each cell of a map, for a table."""
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            yield row, column, value


def head_maps(maps: Tensor, *, heads: bool) -> list[tuple[str, Tensor]]:
    """Return (head, map) for each of the maps (H, ...), or only ("mean", mean over heads)."""
    return [(str(head), each) for head, each in enumerate(maps)] if heads else [("mean", maps.mean(0))]


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def table(names: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Table:
    """Return a table; columns that contain a string are text columns, all others are numeric."""
    listed = [list(row) for row in rows]
    text = [any(isinstance(cell, str) for cell in cells) for cells in zip(*listed, strict=True)]
    columns = [Column(name=name, kind="text" if each else "number") for name, each in zip(names, text, strict=True)]
    return Table(columns=columns, rows=listed)
