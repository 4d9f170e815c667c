"""Open files that users hand in: regular files, of limited size.

A FIFO blocks until someone writes to it, and a device may have no end. Links are followed, because data folders often
consist of links.
"""

import json
import os
import stat
from pathlib import Path
from typing import IO, Any

from attngraft.files import shown_size
from attngraft.suggest import quoted

JSON_LIMIT = 2**32  #: bytes of annotations: those of COCO's training images have 470 MB
TEXT_LIMIT = 2**28  #: bytes of a text file that is read as a whole
DEPTH_LIMIT = 100  #: objects and lists of JSON inside of each other
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class UnsuitableFile(OSError):
    """A file that is not regular, or too large; `strerror` says which."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(None, reason, str(path))

    def __str__(self) -> str:
        return str(self.strerror)


def open_regular(path: Path | str, *, limit: int | None = None) -> IO[bytes]:
    """Open a regular file for reading; never blocks.

    Args:
        path: the file, or a link to it.
        limit: largest size in bytes.

    Raises:
        UnsuitableFile: a FIFO, socket or device, or a larger file.
        OSError: the file cannot be opened.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    if stat.S_ISSOCK(os.stat(path).st_mode):  # cannot be opened
        raise UnsuitableFile(path, "is a socket, not a regular file")
    file = os.fdopen(os.open(path, flags), "rb")  # fdopen raises IsADirectoryError
    found = os.fstat(file.fileno())
    kind = _KINDS.get(stat.S_IFMT(found.st_mode))
    if kind is not None or (limit is not None and found.st_size > limit):
        file.close()
        reason = f"has {shown_size(found.st_size)}, more than {shown_size(limit or 0)}"
        raise UnsuitableFile(path, reason if kind is None else f"is {kind}, not a regular file")
    return file


def read_text(path: Path | str, *, limit: int = TEXT_LIMIT) -> str:
    """Return the content of a text file in UTF-8.

    Raises:
        OSError, UnicodeDecodeError: see `open_regular`.
    """
    with open_regular(path, limit=limit) as file:
        return file.read().decode("utf-8")


def read_json(path: Path | str, *, limit: int = TEXT_LIMIT) -> Any:
    """Return the content of a JSON file.

    Raises:
        OSError: see `open_regular`.
        ValueError: the content is not JSON, is nested too deeply, or has an integer of thousands of digits.
    """
    return parse_json(read_text(path, limit=limit))


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; see `read_json`."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        value = json.loads(text.removeprefix("\ufeff"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if text.count("[") + text.count("{") > DEPTH_LIMIT:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH_LIMIT + 1):
        level = [
            entry
            for each in level
            for entry in (each.values() if isinstance(each, dict) else each)
            if isinstance(entry, (dict, list))  # twice as fast as a union
        ]
        if not level:
            return
    raise ValueError("nested too deeply")


def read_mapping(path: Path | str, *, limit: int = TEXT_LIMIT) -> dict[str, Any]:
    """Return the object in a JSON file; raises a ValueError also for content of another type, see `read_json`."""
    value = read_json(path, limit=limit)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object ({{...}}), found {quoted(value)}")
    return value
