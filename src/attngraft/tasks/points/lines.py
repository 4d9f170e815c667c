"""Numbers in lines of text."""

from __future__ import annotations

import io
import re
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attngraft.errors import DataError
from attngraft.suggest import quoted

MOST = 5_000_000  #: most lines, or rows that are read one by one; more would take gigabytes
_WHOLE = re.compile(r"\d{1,18}", re.ASCII)


def whole(text: str, place: str, what: str) -> int:
    """Return the number in a header; raises a DataError if it is no whole number."""
    if not _WHOLE.fullmatch(text):
        raise DataError(f"{place}: the number of {what} is {quoted(text)}, not a whole number; save the file again")
    return int(text)


def check_end(data: bytes, at: int, path: Path) -> None:
    """Check that nothing follows the content, which ends at the offset `at`; raises a DataError."""
    if data[at:].strip(b"\0 \r\n"):
        raise DataError(f"{path}: has {len(data) - at:,} bytes more than its header declares; save it again")


def header_lines(data: bytes) -> list[str]:
    """Return the lines of a header."""
    return data.decode("latin-1").removesuffix("\n").replace("\r", "").split("\n")


def parsed(texts: Sequence[str], columns: Sequence[int] | None = None, delimiter: str | None = None) -> np.ndarray:
    """Return the numbers of one or more lines, see `Lines.values`; raises a ValueError."""
    return np.loadtxt(texts, delimiter=delimiter, usecols=columns, comments=None, quotechar=None, ndmin=2)


class Lines:
    """The lines of a file without empty lines and comments (`#`, `//`), which are taken from the start.

    Args:
        data: the text.
        path: the file, for messages.
        first: number of the first line.

    Raises:
        DataError: there are too many lines.
    """

    def __init__(self, data: bytes, path: Path, *, first: int = 1) -> None:
        self.numbers, self.texts, self.path = array("q"), list[str](), path
        text = io.TextIOWrapper(
            io.BytesIO(data), "utf-8-sig", "replace"
        )  # also splits at \r, and does not copy the text
        for number, line in enumerate(map(str.strip, text), start=first):
            if line and not line.startswith(("#", "//")):
                self.numbers.append(number)
                self.texts.append(line)
            if number - first >= MOST:
                raise DataError(f"{path}: has more than {MOST:,} lines; save it in a binary format (.npy, .ply)")

    def __len__(self) -> int:
        return len(self.texts)

    def place(self, index: int) -> str:
        """Return the location of a line, for messages."""
        return f"{self.path}: line {self.numbers[index]}"

    def take(self, count: int, what: str) -> Lines:
        """Remove and return the first `count` lines; raises a DataError if there are fewer."""
        if count > len(self):
            raise DataError(
                f"{self.path}: declares {count:,} {what}, but only {len(self):,} lines follow; the file is incomplete: "
                "download or save it again"
            )
        taken = Lines(b"", self.path)
        taken.numbers, self.numbers = self.numbers[:count], self.numbers[count:]
        taken.texts, self.texts = self.texts[:count], self.texts[count:]
        return taken

    def check_end(self) -> None:
        """Check that no lines are left; raises a DataError."""
        if len(self):
            raise DataError(
                f"{self.place(0)}: is more than the header declares; correct the header, or remove the line"
            )

    def values(
        self, columns: Sequence[int] | None = None, *, width: int | None = None, delimiter: str | None = None
    ) -> np.ndarray:
        """Return the numbers of the lines, (N, columns) float64.

        Args:
            columns: indices of the columns; None: all, as many in each line as in the first.
            width: number of all columns of a line; None: a line may have more than `columns`.
            delimiter: between columns; None: blanks.

        Raises:
            DataError: an entry is not a number, or a line has another number of columns; names the line.
        """
        if not self.texts:
            return np.zeros((0, 0 if columns is None else len(columns)))
        if columns is None:
            width = len(self.texts[0].split(delimiter))
        try:
            values = parsed(self.texts, columns, delimiter)
        except ValueError:
            index = self._mistake(columns, delimiter)
        else:
            if columns is None or width is None:
                return values
            others = (i for i, text in enumerate(self.texts) if len(text.split(delimiter)) != width)
            if (index := next(others, -1)) < 0:
                return values
        text, place = self.texts[index], self.place(index)
        count, least = len(text.split(delimiter)), max(columns or [0]) + 1
        if count != width if width is not None else count < least:
            raise DataError(f"{place}: has {count} columns, expected {width or least}; correct this line")
        raise DataError(f"{place}: {quoted(text)} has an entry that is not a number; correct or remove this line")

    def _mistake(self, columns: Sequence[int] | None, delimiter: str | None) -> int:
        """Return the index of the first line that cannot be parsed."""
        index, end = 0, len(self.texts)  # the mistake is at or after `index`, and before `end`
        while end - index > 1:
            middle = (index + end) // 2
            try:
                parsed([self.texts[0], *self.texts[index:middle]], columns, delimiter)
            except ValueError:
                end = middle
            else:
                index = middle
        return index
