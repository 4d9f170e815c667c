"""Decode image files to the pixels that an image viewer shows: upright, opaque, 8 bits per channel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
from PIL import Image, ImageOps, JpegImagePlugin

from attngraft.errors import DataAccessError, DataError
from attngraft.image_files import check_png, open_image

RULES = 5  #: version of the decoding rules in this file; part of the cache key of scanned images

HUGE = 2**25  #: JPEGs with more pixels are decoded at a reduced size

_ORIENTATION = 0x0112  # EXIF
_PHOTOMETRIC, _BITS, _PLANES, _SAMPLE_FORMAT = 262, 258, 284, 339  # TIFF
_QUARTER_TURNS = (5, 6, 7, 8)
_LOSSY = ("jpeg", "tiff_jpeg", "webp")  #: compressions of TIFF that change values
_SCALES = {"L;2": 85, "L;4": 17}  #: factors by which Pillow multiplies pixels of 2 and 4 bits, in any order
_DEEP = (";16B", ";16L", ";16N")  #: ends of raw modes of 16 bits, of which Pillow keeps 8 in each of several channels
_DEEPEST = 2**16 - 1  # largest integer of a pixel
_STRIP = 2**22  # pixels that are converted at once

_UNSUPPORTED = {
    "F": "floating-point pixels of unknown range; save it with 8 or 16 bits",
    "LAB": "CIELAB pixels; save it as RGB",
}


class UnreadableImage(DataError):
    """Error for an image that cannot be decoded; `reason` is the message without file name and remedy."""

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(
            f"{where}: cannot be read as an image ({reason}); replace or remove it, or use --set task.data.check=full "
            "--set task.data.max_corrupt=10 to find and skip all such images before training"
        )

    def __reduce__(self) -> tuple[type[UnreadableImage], tuple[str, str]]:
        return UnreadableImage, (self.where, self.reason)


def decode(stream: IO[bytes], *, where: str) -> Image.Image:
    """Decode the first frame of an open file and apply its EXIF orientation.

    A JPEG of more than 2^25 pixels is decoded at 1/2, 1/4 or 1/8 of its size (Pillow's `draft`), the largest size below
    the limit, to bound memory and time; no host uses that many pixels. See `image_files` for the limits of all images.

    Raises:
        UnreadableImage: the file is not an image, damaged or too large, or its pixels are floating-point, CIELAB, or
            integers outside of 16 bits; the message contains `where`.
        DataAccessError: the system cannot read the file.
    """
    image = _decoded(stream, where=where, values=False)
    low, high = image.getextrema() if image.mode == "I" else (0, 0)
    if not 0 <= low <= high <= _DEEPEST:  # type: ignore[operator]
        reason = f"pixels from {low} to {high}, outside of 0 to {_DEEPEST}; save it with 8 or 16 bits"
        raise UnreadableImage(where, reason)
    return image


def decode_values(stream: IO[bytes], *, where: str) -> Image.Image:
    """Decode a mask like `decode`, but allow integers outside of 16 bits, and do not scale pixels of 2 or 4 bits.

    Raises:
        UnreadableImage, DataAccessError: as in `decode`.
    """
    return _decoded(stream, where=where, values=True)


def _decoded(stream: IO[bytes], *, where: str, values: bool) -> Image.Image:
    with _explained(where):
        image = _opened(stream)
        if image.format == "PNG":
            check_png(stream)
        if values and image.info.get("compression") in _LOSSY:
            raise ValueError(f"its compression, {image.info['compression']}, changes values; save masks as PNG")
        if values and getattr(image, "n_frames", 1) > 1:
            raise ValueError("it has several pages; save a mask with one page")
        tiles: Any = getattr(image, "tile", None)  # not typed
        stored = tiles[0].args if tiles else None
        stored, maximum = (*stored, None, None)[:2] if isinstance(stored, tuple) else (stored, None)
        scale = _SCALES.get(str(stored)[:3])
        if values and len(image.getbands()) > 1 and str(stored).endswith(_DEEP):
            raise ValueError("it has several channels of 16 bits; save masks with 8 bits per channel")
        deepest = _DEEPEST if image.mode == "I" else 255
        if values and image.format == "PPM" and maximum not in (None, 0, deepest):  # 0: of floating-point pixels
            raise ValueError(f"its values, up to {maximum}, would be scaled; save masks as PNG")
        image.load()
        check_header(image)
        if values and scale is not None:
            image = image.point([pixel // scale for pixel in range(256)])
        elif scale is not None and "transparency" in image.info:
            image.info["transparency"] *= scale
        upright = _upright(image)
        if image.mode == "I;16" and getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == 0:  # Pillow inverts up to 8 bits
            return Image.fromarray(_DEEPEST - np.asarray(upright))
        return upright


def read_size(stream: IO[bytes], *, where: str) -> tuple[int, int]:
    """Return the width and height of the image that `decode` returns, without decoding its pixels.

    Raises:
        UnreadableImage, DataAccessError: as in `decode`, except for damaged pixels.
    """
    with _explained(where):
        image = _opened(stream)
        return image.size[::-1] if _orientation(image) in _QUARTER_TURNS else image.size


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Convert the errors of Pillow in the block."""
    try:
        yield
    except Exception as error:  # Pillow's plugins raise all kinds of errors for damaged files
        if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of Pillow
            raise DataAccessError(f"{where}: cannot be read ({error.strerror})") from None
        reason = str(error) or type(error).__name__
        if reason.startswith("cannot identify image file"):  # the message contains the repr of a Python object
            reason = "unrecognized image format"
        raise UnreadableImage(where, reason) from None


def check_header(image: Image.Image) -> None:
    """Raise ValueError if an image has no pixels, or pixels that cannot be converted to RGB."""
    if 0 in image.size:
        raise ValueError("it has no pixels")
    if image.mode in _UNSUPPORTED:
        raise ValueError(_UNSUPPORTED[image.mode])
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
    bits, signed, planes = tags.get(_BITS, (8,)), 2 in tags.get(_SAMPLE_FORMAT, (1,)), tags.get(_PLANES, 1)
    split = planes == 2 and len(bits) > 1 and max(bits) > 8
    if split or (signed and max(bits) <= 8) or not {*bits} <= {1, 2, 4, 8, 16, 32}:
        raise ValueError("an unusual form of TIFF, which Pillow misreads; save it with 8 bits")


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    """Convert `image` to RGB or L.

    Transparent pixels are blended with white, as in most viewers. 16-bit gray images (also stored in 32 bits) keep their
    upper 8 bits; Pillow would clip them.
    """
    if image.mode.startswith("I"):
        deep = np.asarray(image)
        gray = (deep >> 8).clip(0, 255).astype(np.uint8)
        if "transparency" in image.info:
            gray[deep == image.info["transparency"]] = 255
        image = Image.fromarray(gray)
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = _blended(image) if image.width * image.height <= _STRIP else _blended_strips(image)
    return image if image.mode == mode else image.convert(mode)


def strips(image: Image.Image) -> Iterator[Image.Image]:
    """Yield the rows of an image in parts of limited memory; those of a usual image at once."""
    rows = max(1, _STRIP // max(1, image.width))
    if rows >= image.height:
        yield image
        return
    for top in range(0, image.height, rows):
        yield image.crop((0, top, image.width, min(top + rows, image.height)))


def _blended_strips(image: Image.Image) -> Image.Image:
    whole, top = Image.new("RGB", image.size), 0
    for strip in strips(image):
        whole.paste(_blended(strip), (0, top))
        top += strip.height
    return whole


def _blended(image: Image.Image) -> Image.Image:
    if image.mode in ("La", "RGBa"):
        image = image.convert(image.mode.upper())
    foreground = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(foreground)
    return white.convert("RGB")


def _opened(stream: IO[bytes]) -> Image.Image:
    """Open the image without decoding its pixels; for a large JPEG, set the reduced size."""
    image = open_image(stream)
    width, height = image.size
    scale = next((s for s in (1, 2, 4) if width * height <= HUGE * s * s), 8)
    if scale > 1 and isinstance(image, JpegImagePlugin.JpegImageFile):
        image.draft(None, (width // scale, height // scale))
    return image


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # EXIF data are often damaged in images with intact pixels
        return 1


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image) if _orientation(image) != 1 else image
    except Exception:  # as above
        return image
