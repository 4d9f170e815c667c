"""Which image files a user means: names, folders, patterns, and lists on standard input."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from attngraft.errors import UsageError
from attngraft.tasks.images.sources.folder import list_folder
from attngraft.tasks.images.sources.listing import is_image, natural


def find_images(arguments: Sequence[str], *, stdin: IO[bytes] | None = None) -> list[str]:
    """The files that `arguments` stand for, in their order.

    A folder stands for all images below it in natural order, a pattern (`*.jpg`, `**/*.png`) for the files that match,
    `-` for the lines of `stdin`. A name without a file is kept: whoever opens it finds out, and the others are not lost.

    Raises:
        UsageError: a folder, a pattern or a list without images; names it.
        DataError: a folder that cannot be read.
    """
    return [path for argument in arguments for path in _meant(argument, stdin)]


def _meant(argument: str, stdin: IO[bytes] | None) -> list[str]:
    if argument == "-":
        found = list(_lines(stdin))
        if not found:
            raise UsageError("-: standard input holds no names of images, one a line")
        return found
    path = Path(argument)
    if path.is_dir():
        below = sorted(list_folder(path).files, key=natural)
        if not below:
            raise UsageError(f"{argument}: there are no images in this folder, nor below it")
        return [str(path / name) for name in below]
    if glob.has_magic(argument) and not os.path.lexists(argument):
        matches = sorted(glob.glob(argument, recursive=True), key=natural)
        files = [name for name in matches if os.path.isfile(name) and is_image(name.replace(os.sep, "/"))]
        if not files:
            raise UsageError(f"{argument}: no image matches this pattern")
        return files
    return [argument]


def _lines(stdin: IO[bytes] | None) -> Iterator[str]:
    for line in stdin or ():
        name = os.fsdecode(line.rstrip(b"\r\n"))
        if name.strip():
            yield name
