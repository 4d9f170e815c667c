"""Conversions from tensors to the data of an analysis result: images as PNG, maps as rows of numbers, tables."""

import base64
import io
from collections.abc import Iterable, Iterator, Sequence

from PIL import Image, ImageDraw
from torch import Tensor

from attngraft.errors import RecordError
from attngraft.results.analysis import Picture, PictureRow
from attngraft.results.sections import Cell, Column, Table

_MARKED_SIDE = 240  #: pixels at least of the longer side of an image with marks
_BACKDROP_SIDE = 112  #: pixels at most of an image under a map
_DIGITS = 6  #: significant digits of a map's numbers: its file is read by people

Values = list[list[float]]  #: a map's numbers, row by row


def png(view: Tensor) -> str:
    """Bytes (C, H, W) of one or three channels as PNG, base64."""
    return _encoded(_image(view))


def backdrop(view: Tensor) -> str:
    """A small gray version, to be drawn under maps: a result holds it once per map."""
    image = _image(view).convert("L")
    image.thumbnail((_BACKDROP_SIDE, _BACKDROP_SIDE))
    return _encoded(image)


def marked(view: Tensor, positions: Sequence[tuple[float, float]]) -> str:
    """The image with numbers from 1 on at `positions` (row, column), as fractions of its sides."""
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


def image_row(images: Iterable[tuple[str, str]]) -> PictureRow:
    """A first row of images, each a name and its PNG."""
    return PictureRow(name="", pictures=[Picture(caption=name, image=image) for name, image in images])


def map_values(tensor: Tensor) -> Values:
    """Numbers of a map (rows, columns).

    Raises:
        RecordError: some are NaN or infinite.
    """
    if not bool(tensor.isfinite().all()):
        raise RecordError("its values contain NaN or infinity: the model diverged in training, or overflows")
    return [[float(f"{value:.{_DIGITS}g}") for value in row] for row in tensor.double().cpu().tolist()]


def cells(values: Values) -> Iterator[tuple[int, int, float]]:
    """(row, column, value) of a map, for a table."""
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            yield row, column, value


def head_maps(maps: Tensor, *, heads: bool) -> list[tuple[str, Tensor]]:
    """Maps (H, ...) by head, with the head's number; or only their mean."""
    return [(str(head), each) for head, each in enumerate(maps)] if heads else [("mean", maps.mean(0))]


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def table(names: Sequence[str], texts: int, rows: Iterable[Sequence[Cell]]) -> Table:
    """A table whose first `texts` columns hold text, the others numbers."""
    columns = [Column(name=name, kind="text" if index < texts else "number") for index, name in enumerate(names)]
    return Table(columns=columns, rows=[list(row) for row in rows])
