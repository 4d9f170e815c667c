"""Open image files: of known formats, and with a limited number of pixels."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from typing import IO, Any

from PIL import Image, JpegImagePlugin

#: Formats of the extensions in `tasks.images.sources.listing`. Others may be slow or start programs (PostScript).
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")

PIXELS = 100_000_000  #: Pillow takes up to 4 bytes for each, and libjpeg 8 for a progressive JPEG
SEQUENTIAL = 4 * PIXELS  #: largest number of pixels of a JPEG that is decoded row by row, at a reduced size
SCANS = 20  #: largest number of scans of a progressive JPEG of `PIXELS` pixels; each goes over all pixels
_SCAN = 10  #: least number of bytes of a scan

WEBP_PIXELS = PIXELS // 2  #: Pillow takes up to 12 bytes for each

# Of the PPM formats, Pillow decodes these in C; others, such as those that contain numbers as text, are decoded in Python.
_BLANK = rb"(?:\s|#[^\r\n]*[\r\n])+"
_FAST_PPM = re.compile(rb"P4%b\d+%b\d+\s|P[56]%b\d+%b\d+%b255\s|P5%b\d+%b\d+%b65535\s".replace(b"%b", _BLANK))
_PPM_HEADER = 2**10  #: bytes in which the header of a fast one ends
_SLOW_PPM = 2**22  #: largest size in bytes of a slow one
_BLOCK = 2**20  #: bytes of a PNG that are read at once
_BMP_BITS = {"1": 1, "P;1": 1, "P;4": 4, "P": 8, "L": 8}  #: bits of a pixel in raw modes with one channel
_WIDTH, _HEIGHT, _CHANNELS, _PLANES = 256, 257, 277, 284  # TIFF
_STRIPS, _STRIP_ROWS, _TILES, _TILE_WIDTH, _TILE_HEIGHT = 273, 278, 324, 322, 323
_COMMENTS = 1000  #: largest number of comments in one with numbers as text; each takes a copy of a block


def open_image(file: IO[bytes]) -> Image.Image:
    """Open the image in a file, which remains open, without decoding its pixels.

    Raises:
        ValueError: the image has too many pixels, or takes too long to decode, or the file is empty.
        OSError: the system cannot read the file, or it is not an image of a format in `FORMATS`.
        SyntaxError, ...: the file is damaged; see `opening.DAMAGE`.
    """
    file.seek(0)
    start = file.read(30)
    if not start:
        raise ValueError("the file is empty")
    file.seek(0)
    if not start.startswith(b"\xff\xd8\xff"):
        _check_ppm(file)
        try:
            image = Image.open(file, formats=FORMATS)
        except Image.DecompressionBombError:  # Pillow's own limit
            raise ValueError(f"it has more than {PIXELS:,} pixels; make it smaller") from None
        if image.format == "BMP":
            _check_bmp(image, start)
        if image.format == "TIFF":
            _check_tiff(image.tag_v2)  # type: ignore[attr-defined]
        _check_pixels(image, WEBP_PIXELS if image.format == "WEBP" else PIXELS)
        return image
    jpeg = JpegImagePlugin.jpeg_factory(file)  # Image.open would refuse large JPEGs, whose size can be reduced
    if jpeg.width * jpeg.height > PIXELS:
        _check_pixels(jpeg, SEQUENTIAL if _is_sequential(jpeg, file) else PIXELS)
    if jpeg.info.get("progressive"):
        _check_scans(jpeg, file)
    return jpeg


def _check_bmp(image: Image.Image, start: bytes) -> None:
    coder, _, _, (raw, *_) = image.tile[0]  # type: ignore[attr-defined]
    bits = start[24] if start[14] == 12 else start[28]  # of a pixel; the header of OS/2 has 12 bytes
    if coder == "raw" and _BMP_BITS.get(raw, bits) != bits:
        raise ValueError(f"it is a BMP with gray colors in {bits} bits, which Pillow misreads; save it as PNG")


def _check_tiff(tags: Mapping[int, Any]) -> None:
    """Raise ValueError if a TIFF lacks strips or tiles, for which Pillow takes zeros."""
    width, height = tags[_WIDTH], tags[_HEIGHT]
    if _STRIPS in tags:
        offsets, size = tags[_STRIPS], (width, tags.get(_STRIP_ROWS, height))
    else:
        offsets, size = tags.get(_TILES, ()), (tags.get(_TILE_WIDTH, width), tags.get(_TILE_HEIGHT, height))
    needed = -(-width // max(1, size[0])) * -(-height // max(1, size[1]))
    needed *= tags.get(_CHANNELS, 1) if tags.get(_PLANES) == 2 else 1
    found = sum(map(bool, offsets))
    if found < needed:
        raise ValueError(f"it is damaged: it has {found} of {needed} strips or tiles")


def check_png(file: IO[bytes]) -> None:
    """Check the chunks of a PNG that decide about its pixels; Pillow does not check those that contain them.

    Raises:
        ValueError: a checksum is wrong, or there are two headers.
    """
    position, headers = file.tell(), 0
    file.seek(8)
    while len(start := file.read(8)) == 8:
        left, name = int.from_bytes(start[:4], "big"), start[4:]
        if name[0] & 32:  # a lower-case letter: metadata
            file.seek(left + 4, os.SEEK_CUR)
            continue
        checksum = zlib.crc32(name)
        while left and (block := file.read(min(left, _BLOCK))):
            checksum, left = zlib.crc32(block, checksum), left - len(block)
        headers += name == b"IHDR"
        if headers > 1:
            raise ValueError("it has two headers")
        if file.read(4) not in (checksum.to_bytes(4, "big"), b""):
            raise ValueError("it is damaged: a checksum is wrong")
        if name == b"IEND":
            break
    file.seek(position)


def _check_pixels(image: Image.Image, limit: int) -> None:
    pixels = image.width * image.height
    if pixels > limit:
        raise ValueError(f"it has {pixels:,} pixels, more than {limit:,}; make it smaller")


def _check_ppm(file: IO[bytes]) -> None:
    start = file.read(_PPM_HEADER)
    if re.match(rb"P[0-6fy]", start) and not _FAST_PPM.match(start):
        slow = file.seek(0, os.SEEK_END) > _SLOW_PPM
        file.seek(0)
        if slow or (start[1:2] in b"123" and file.read().count(b"#") > _COMMENTS):
            raise ValueError("it is a PPM or PGM that takes too long to read; convert it to PNG")
    file.seek(0)


def _check_scans(jpeg: JpegImagePlugin.JpegImageFile, file: IO[bytes]) -> None:
    position, pixels = file.tell(), jpeg.width * jpeg.height
    limit = SCANS * PIXELS // max(1, pixels)
    if file.seek(0, os.SEEK_END) > _SCAN * limit:
        file.seek(0)
        scans = file.read().count(b"\xff\xda")
        if scans > limit:
            raise ValueError(f"it has {scans} scans of {pixels:,} pixels, which take too long; save it again")
    file.seek(position)


def _is_sequential(jpeg: JpegImagePlugin.JpegImageFile, file: IO[bytes]) -> bool:
    """Return whether a JPEG has a single scan; `file` is positioned behind its header. Others are decoded as a whole."""
    position, header = file.tell(), 6 + 2 * jpeg.layers
    file.seek(max(0, position - header - 2))
    single = file.read(4) == b"\xff\xda" + header.to_bytes(2, "big")
    file.seek(position)
    return single and not jpeg.info.get("progressive")
