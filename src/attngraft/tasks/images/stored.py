"""Files and cells of tables that contain images or masks, opened with the rules of all images."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from PIL import Image

from attngraft.errors import DataError
from attngraft.opening import open_regular
from attngraft.tasks.images.sources.decoding import UnreadableImage, decode, decode_values, in_mode, read_size
from attngraft.tasks.images.sources.huggingface import ArrowImages

_JPEG = b"\xff\xd8\xff"  #: first bytes


@dataclass(frozen=True)
class Cell:
    """An image in a row of a Hugging Face data set; `str` gives its location, for messages."""

    images: ArrowImages
    index: int

    def __str__(self) -> str:
        return f"{self.images.where(self.index)}, column {self.images.column!r}"


Stored = Path | Cell  #: an image or a mask


def stored_bytes(stored: Stored) -> int:
    """Return the size of an encoded image in bytes."""
    if isinstance(stored, Path):
        return stored.stat().st_size
    stamp = stored.images.stamp(stored.index)
    return 0 if stamp is None else stamp[0]


def open_stored(stored: Stored) -> IO[bytes]:
    """Open an encoded image.

    Raises:
        OSError, DataError: it cannot be read.
    """
    return open_regular(stored) if isinstance(stored, Path) else stored.images.raw(stored.index)


def read_image(stored: Stored) -> Image.Image:
    """Return an image in mode RGB, upright.

    Raises:
        DataError: it cannot be read.
    """
    with _opened(stored, "an image") as stream:
        return in_mode(decode(stream, where=str(stored)), "RGB")


def image_size(stored: Stored) -> tuple[int, int]:
    """Return the width and height of `read_image`, from the header.

    Raises:
        DataError: it cannot be read.
    """
    with _opened(stored, "an image") as stream:
        return read_size(stream, where=str(stored))


def read_mask(stored: Stored) -> Image.Image:
    """Return a mask in the mode in which it is stored, upright.

    Raises:
        DataError: it cannot be read, or its format changes values.
    """
    with _opened(stored, "a mask") as stream:
        start = stream.read(12)
        if start.startswith((_JPEG, b"GIF8")) or (start[8:] == b"WEBP" and not _is_lossless(stream)):
            raise lossy(stored)
        stream.seek(0)
        return decode_values(stream, where=str(stored))


def _is_lossless(stream: IO[bytes]) -> bool:
    """Return whether the pixels of a WebP, whose chunks begin at the position of `stream`, are lossless."""
    while len(start := stream.read(8)) == 8 and not start.startswith((b"VP8 ", b"VP8L", b"ALPH", b"ANMF")):
        size = int.from_bytes(start[4:], "little")
        stream.seek(size + size % 2, os.SEEK_CUR)
    return start.startswith(b"VP8L")


def lossy(stored: Stored) -> DataError:
    """Return the error for a mask in a format that changes values."""
    return DataError(f"{stored}: JPEG, lossy WebP and GIF change the values of masks; save masks as PNG")


@contextmanager
def _opened(stored: Stored, what: str) -> Iterator[IO[bytes]]:
    try:
        with open_stored(stored) as stream:
            yield stream
    except UnreadableImage as error:
        raise DataError(f"{stored}: cannot be read as {what} ({error.reason}); replace or remove it") from None
    except OSError as error:
        raise DataError(f"{stored}: cannot be read ({error.strerror}); replace or remove it") from None
