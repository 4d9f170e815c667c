"""From tensors to what a finding holds: images as PNG, maps as rows of numbers."""

from __future__ import annotations

import base64
import io

from PIL import Image
from torch import Tensor

from attngraft.errors import RecordError

_DIGITS = 6  #: significant digits of a map's numbers: its file is read by people


def png(view: Tensor) -> str:
    """Bytes (C, H, W) of one or three channels as PNG, base64."""
    pixels = view.movedim(0, -1).squeeze(-1).numpy()
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def numbers_of(tensor: Tensor) -> list[list[float]]:
    """A map (rows, columns).

    Raises:
        RecordError: some of its numbers are NaN or infinite.
    """
    if not bool(tensor.isfinite().all()):
        raise RecordError("some of its numbers are NaN or infinite: the model did not train well, or overflows")
    return [[float(f"{value:.{_DIGITS}g}") for value in row] for row in tensor.double().cpu().tolist()]
