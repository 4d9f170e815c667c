"""Tables of text: .csv or .tsv through the standard library, .parquet through pyarrow."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attngraft.errors import ConfigError, DataError
from attngraft.suggest import did_you_mean

KINDS = (".csv", ".tsv", ".parquet")

#: spellings of a missing entry
MISSING = frozenset({"", "nan", "none", "null", "na", "n/a"})


@dataclass(frozen=True, kw_only=True)
class LabelTable:
    """Columns of equal length. Entries of a .csv are text; those of a .parquet have its types (None: missing)."""

    where: str
    columns: dict[str, list[Any]]
    numbers: list[int | str]  #: each row's number (.csv: the header is 1; else from 0) or name

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def column(self, name: str, *, field: str) -> list[Any]:
        """Return the column that the user named in `task.data.<field>`.

        Raises:
            ConfigError: no such column.
        """
        if name not in self.columns:
            listed = ", ".join(self.columns)
            raise ConfigError(
                f"task.data.{field}: {self.where} has no column {name!r}{did_you_mean(name, self.columns)}; "
                f"available: {listed}"
            )
        return self.columns[name]

    def line(self, row: int) -> str:
        """Return a row's location, for messages."""
        number = self.numbers[row]
        return f"{self.where}: row {number}" if isinstance(number, int) else f"{self.where}: {number}"


def read_table(path: Path) -> LabelTable:
    """Read the table at `path`.

    Raises:
        DataError: not readable, no rows, a column without a name or with a repeated one, rows of different lengths.
    """
    table = _parquet(path) if path.suffix.lower() == ".parquet" else _text(path)
    if not len(table):
        raise DataError(f"{path}: has no rows below its header")
    return table


def _text(path: Path) -> LabelTable:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be opened ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    first_line = text.partition("\n")[0]
    separator = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=first_line.count)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}: cannot be read as a table ({error})") from None
    if not rows:
        raise DataError(f"{path}: is empty; its first line must name the columns (path,label)")
    header = [name.strip() for name in rows[0]]
    if len(set(header)) != len(header) or not all(header):
        raise DataError(f"{path}: its first line must name every column once; found: {separator.join(rows[0])[:100]}")
    columns: dict[str, list[Any]] = {name: [] for name in header}
    numbers: list[int | str] = []
    for number, row in enumerate(rows[1:], start=2):
        if not row:  # an empty line
            continue
        if len(row) != len(header):
            raise DataError(
                f"{path}: row {number} has {len(row)} entries, the header {len(header)}; put entries that contain "
                f"{separator!r} in double quotes"
            )
        numbers.append(number)
        for name, entry in zip(header, row, strict=True):
            columns[name].append(entry.strip())
    return LabelTable(where=str(path), columns=columns, numbers=numbers)


def _parquet(path: Path) -> LabelTable:
    try:
        import pyarrow  # optional dependency
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{path}: .parquet needs pyarrow: pip install 'attngraft[data]'") from None
    try:
        table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as .parquet ({error})") from None
    return LabelTable(
        where=str(path),
        columns={name: table[name].to_pylist() for name in table.column_names},
        numbers=list(range(len(table))),
    )
