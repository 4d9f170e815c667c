"""From a file's bytes to the pixels that a viewer would show: upright, without transparency, 8 bits deep."""

from __future__ import annotations

from typing import IO

import numpy as np
from PIL import Image, ImageOps, JpegImagePlugin

from attngraft.errors import DataError

RULES = 1  #: changes with the pixels that this file makes of a file; part of the key of what is remembered of images

HUGE = 2**25  #: pixels above which a JPEG is reduced while it is decoded

_ORIENTATION = 0x0112  # EXIF

_MODES = {
    "F": "its pixels are floating-point numbers, of unknown range; save it with 8 or 16 bits",
    "LAB": "its pixels are CIELAB; save it as RGB",
}


class UnreadableImage(DataError):
    """An image that cannot be decoded. `reason` is the error without the file's name and the remedy."""

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(
            f"{where}: cannot be read as an image ({reason}); replace or remove it, or let task.data.check: full find all "
            "such images before training and task.data.max_corrupt leave them out"
        )

    def __reduce__(self) -> tuple[type[UnreadableImage], tuple[str, str]]:
        return UnreadableImage, (self.where, self.reason)


def decode(stream: IO[bytes], *, where: str) -> Image.Image:
    """A decoded image from an open file, turned upright as its EXIF data say. Of several frames the first is taken.

    A JPEG of more than 2^25 pixels is decoded at 1/2, 1/4 or 1/8 of its size (Pillow's `draft`), the largest that has no
    more: no host takes as many pixels, and memory and time stay bounded. Other files beyond Pillow's limit against
    decompression bombs are refused.

    Raises:
        UnreadableImage: no image, a damaged one, one too large, of floating-point numbers or CIELAB; names `where`.
    """
    try:
        image = _opened(stream)
        image.load()
        if image.mode in ("F", "LAB"):
            raise ValueError(_MODES[image.mode])
        return _upright(image)
    except Image.DecompressionBombError:
        raise UnreadableImage(
            where, f"more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels; make it smaller"
        ) from None
    except Exception as error:  # Pillow's plugins raise whatever a damaged file leads them to
        raise UnreadableImage(where, _reason(error)) from None


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    """`image` as RGB or L.

    What is transparent is laid on white, as most viewers and pages show it. Deep gray images (16 bits, or 32 bits that
    hold 16) keep their upper 8 bits, where Pillow alone would clip them.
    """
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = _on_white(image)
    return image if image.mode == mode else image.convert(mode)


def _opened(stream: IO[bytes]) -> Image.Image:
    """The image before its pixels are decoded, with a JPEG's reduction set."""
    head = stream.read(3)
    if not head:
        raise ValueError("the file is empty")
    if head == b"\xff\xd8\xff":  # Pillow's own opening refuses large ones before they could be reduced
        stream.seek(0)
        image: Image.Image = JpegImagePlugin.jpeg_factory(stream)
        width, height = image.size
        scale = next((s for s in (1, 2, 4) if width * height <= HUGE * s * s), 8)
        if scale > 1:
            image.draft(None, (width // scale, height // scale))
        return image
    stream.seek(0)
    return Image.open(stream)


def _upright(image: Image.Image) -> Image.Image:
    try:
        turned = image.getexif().get(_ORIENTATION, 1) != 1
        return ImageOps.exif_transpose(image) if turned else image
    except Exception:  # EXIF data are often damaged; the pixels are not
        return image


def _on_white(image: Image.Image) -> Image.Image:
    """Without transparency; RGB."""
    if image.mode in ("La", "RGBa"):
        image = image.convert(image.mode.upper())
    above = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(above)
    return white.convert("RGB")


def _reason(error: Exception) -> str:
    """Pillow's own words, without the Python object that it names."""
    text = str(error)
    if text.startswith("cannot identify image file"):
        return "no image format that is known"
    return text or type(error).__name__
