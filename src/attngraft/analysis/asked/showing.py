"""From tensors to what a finding holds: images as PNG, maps as rows of numbers."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

from PIL import Image, ImageDraw
from torch import Tensor

from attngraft.errors import RecordError

_SIDE = 240  #: pixels of an image's longer side, at least, on which places are marked
_BACKDROP = 112  #: pixels at most of an image under a map
_DIGITS = 6  #: significant digits of a map's numbers: its file is read by people


def png(view: Tensor) -> str:
    """Bytes (C, H, W) of one or three channels as PNG, base64."""
    return _encoded(_image(view))


def backdrop(view: Tensor) -> str:
    """The same in gray and small, for maps that lie over it: a finding holds it with each of them."""
    image = _image(view).convert("L")
    image.thumbnail((_BACKDROP, _BACKDROP))
    return _encoded(image)


def marked(view: Tensor, places: Sequence[tuple[float, float]]) -> str:
    """The same with numbers from 1 on at places (row, column), in parts of its sides."""
    image = _image(view).convert("RGB")
    times = -(-_SIDE // max(image.size))
    image = image.resize((times * image.width, times * image.height), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(image)
    for number, (row, column) in enumerate(places, start=1):
        at = column * image.width, row * image.height
        draw.text(
            at,
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


def numbers_of(tensor: Tensor) -> list[list[float]]:
    """A map (rows, columns).

    Raises:
        RecordError: some of its numbers are NaN or infinite.
    """
    if not bool(tensor.isfinite().all()):
        raise RecordError("some of its numbers are NaN or infinite: the model did not train well, or overflows")
    return [[float(f"{value:.{_DIGITS}g}") for value in row] for row in tensor.double().cpu().tolist()]
