"""Tables and the labels of their rows: a single label, a list of labels, or a 0/1 column per class.

The standard library reads .csv, .tsv and .jsonl files, and pyarrow reads .parquet files.
"""

import csv
import io
import itertools
import math
import re
import struct
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import AttngraftError, ConfigError, DataError
from attngraft.opening import check_regular, check_unpacked, parse_json, parse_numbers, read_data
from attngraft.suggest import did_you_mean, quoted, repeated
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.base import Stamp, file_stamp, no_labels
from attngraft.tasks.images.sources.listing import natural

KINDS = (".csv", ".tsv", ".jsonl", ".parquet")

#: lower-case spellings of a missing entry
MISSING = frozenset({"", "nan", "none", "null", "na", "n/a"})

SINGLE = ("label", "class", "class_name", "category", "target", "y", "class_index", "class_id", "label_id", "species")
LISTS = ("labels", "classes", "categories", "tags", "targets")  #: usual names of columns of label lists
NUMBERS = ("target", "value", "number", "label", "y")  #: usual names of a single column of numbers
LARGEST_NUMBER = 1e100  #: larger ones overflow when they are squared
SEPARATORS = {"bar": "|", "semicolon": ";", "comma": ",", "space": " "}  #: in order of detection

_NOT_PLAIN = (list, tuple, dict, bytes)
_ENTRY = 8  #: least number of bytes of an entry in memory
_SPARSE = 32  #: largest number of entries of a table for each that is not missing ...
_FREE_ENTRIES = 2**25  #: ... if there are more than these
_ROWS = 2**14  #: number of rows to read at a time, and of different strings in a column to keep once

_YES, _NO = frozenset({"1", "1.0", "true", "yes"}), frozenset({"0", "0.0", "-1", "-1.0", "false", "no"})


@dataclass(frozen=True, kw_only=True)
class LabelTable:
    """Table of columns.

    Entries of a .csv file are strings; those of a .jsonl or .parquet file keep their type (None: missing).
    """

    where: str
    columns: dict[str, list[Any]]
    #: row numbers (.csv: from 2, after the header; .parquet: from 0), or where the rows are (`line 3`)
    numbers: Sequence[int | str]
    note: str = ""  #: on cells that look like mistakes

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def take(self, rows: np.ndarray) -> "LabelTable":
        """Return the table of these rows, in ascending order."""
        if len(rows) == len(self):
            return self
        chosen = rows.tolist()
        columns = {name: [entries[row] for row in chosen] for name, entries in self.columns.items()}
        return replace(self, columns=columns, numbers=[self.numbers[row] for row in chosen])

    def column(self, name: str, *, field: str) -> list[Any]:
        """Return the column that is configured in `task.data.<field>`.

        Raises:
            ConfigError: there is no such column.
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


def plain_entries(table: LabelTable, name: str) -> list[Any]:
    """Return a column of texts, numbers and missing entries.

    Raises:
        DataError: an entry is a list, an object or bytes.
    """
    entries = table.columns[name]
    if {*map(type, entries)} & {*_NOT_PLAIN}:
        row = next(row for row, entry in enumerate(entries) if isinstance(entry, _NOT_PLAIN))
        raise DataError(f"{table.line(row)}: column {name!r} contains {quoted(entries[row])}; write a text or a number")
    return entries


def read_groups(table: LabelTable, column: str) -> list[str]:
    """Return the group of each row, from the column that is configured in `task.data.group_column`.

    Raises:
        ConfigError: there is no such column.
        DataError: a row has no group.
    """
    groups = _words(table.column(column, field="group_column"))
    empty = next((row for row, group in enumerate(groups) if group.lower() in MISSING), None)
    if empty is not None:
        raise DataError(f"{table.line(empty)}: column {column!r} is empty; give every row its group")
    return groups


_read: dict[tuple[Path, Stamp | None], LabelTable] = {}  #: at most one table, which the next reader takes


def read_table(path: Path, *, keep: bool = False) -> LabelTable:
    """Read the table at `path`.

    With `keep`, the next call for the same file returns the same table, as reading a million rows takes seconds.

    Raises:
        DataError: the file cannot be read, has no rows, has unnamed or duplicate columns, or rows of different lengths.
    """
    known = _read.pop((path, file_stamp(path)), None)
    _read.clear()
    if known is not None:
        return known
    readers = {".parquet": _parquet, ".jsonl": _json_lines}
    table = readers.get(path.suffix.lower(), _text)(path)
    if not len(table):
        raise DataError(f"{path}: has no rows{'' if path.suffix.lower() in readers else ' below its header'}")
    if keep:
        _read[path, file_stamp(path)] = table
    return table


def read_utf8(path: Path) -> str:
    """Return the text of a file without a byte order mark.

    Raises:
        DataError: the file cannot be opened, or is not UTF-8; the message names the line.
    """
    try:
        return decode_utf8(read_data(path), path)
    except OSError as error:
        raise DataError(f"{path}: cannot be opened ({error.strerror})") from None


def decode_utf8(data: bytes | bytearray, path: Path) -> str:
    """Return the text of the contents of `path`; see `read_utf8`."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}: line {line}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None


class FieldColumns:
    """Columns of objects, each with fields of its own; missing ones are None.

    Args:
        where: file or folder of the objects.
    """

    def __init__(self, where: str) -> None:
        self.where, self._columns, self._rows, self._filled = where, dict[str, list[Any]](), 0, 0

    def add(self, fields: Mapping[str, Any], place: int | str) -> None:
        """Append an object.

        Raises:
            DataError: nearly all entries are missing, because objects have different fields; they would fill the memory.
        """
        for name, value in fields.items():
            column = self._columns.setdefault(name, [])
            column += [None] * (self._rows - len(column))
            column.append(value)
        self._rows += 1
        self._filled += len(fields)
        if len(self._columns) * self._rows > max(_FREE_ENTRIES, _SPARSE * self._filled):
            line = f"row {place}" if isinstance(place, int) else place
            raise DataError(
                f"{self.where}: {line}: the {self._rows:,} objects up to here have {len(self._columns):,} different fields, "
                "and most lack most of them; give them the same few fields"
            )

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns, all of the same length."""
        for column in self._columns.values():
            column += [None] * (self._rows - len(column))
        return self._columns


def _json_lines(path: Path) -> LabelTable:
    columns, numbers = FieldColumns(str(path)), list[int | str]()
    for number, line in enumerate(read_utf8(path).split("\n"), start=1):  # U+2028 may be inside of a string
        if not line.strip():
            continue
        try:
            row = parse_json(line, errors="strict")
        except UnicodeEncodeError:
            raise DataError(
                f"{path}: line {number}: contains half of a character, such as \\ud83d; save its text as UTF-8"
            ) from None
        except ValueError as error:
            reason = getattr(error, "msg", None) or error
            raise DataError(f"{path}: line {number}: not JSON ({reason}); write one object per line") from None
        if not isinstance(row, dict):
            raise DataError(f'{path}: line {number}: not a JSON object; write one per line, such as {{"text": ...}}')
        numbers.append(f"line {number}")
        columns.add(row, numbers[-1])
    return LabelTable(where=str(path), columns=columns.columns(), numbers=numbers)


def _text(path: Path) -> LabelTable:
    text = read_utf8(path)
    first_line = text.partition("\n")[0]
    separator = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=first_line.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    del text  # the stream has a copy
    try:
        names = next(reader, None)
        if names is None:
            raise DataError(f"{path}: is empty; the first line must name the columns (path,label)")
        header = [name.strip() for name in names]
        if len(set(header)) != len(header) or not all(header):
            raise DataError(
                f"{path}: the first line must name every column once; found: {separator.join(names)[:100]}; correct it"
            )
        columns, numbers = [_Column() for _ in header], array("q")
        first, lines, spans = 2, reader.line_num, list[tuple[int, int]]()
        while rows := list(itertools.islice(reader, _ROWS)):
            for number, row in enumerate(rows, start=first):
                if row and len(row) != len(header):
                    raise DataError(
                        f"{path}: row {number} has {len(row)} entries, the header {len(header)}; put entries that contain "
                        f"{separator!r} in double quotes"
                    )
            numbers.extend(number for number, row in enumerate(rows, start=first) if row)  # others are empty lines
            if reader.line_num - lines > len(rows):
                spans += _swallowed(rows, first, separator, len(header))
            first, lines = first + len(rows), reader.line_num
            for column, entries in zip(columns, zip(*filter(None, rows), strict=True), strict=False):
                column.add(entries)
    except csv.Error as error:
        raise DataError(
            f"{path}: line {reader.line_num}: cannot be read as a table ({error}); "
            "save it again as CSV, and close all quotation marks"
        ) from None
    contents = {name: column.entries for name, column in zip(header, columns, strict=True)}
    note = ""
    if spans:
        what = "a cell spans" if len(spans) == 1 else f"the first of {len(spans)} cells that span rows has"
        note = f"{path.name}: row {spans[0][0]}: {what} {spans[0][1]} lines that look like rows; check the quotation marks."
    return LabelTable(where=str(path), columns=contents, numbers=numbers, note=note)


def _swallowed(rows: Sequence[Sequence[str]], first: int, separator: str, columns: int) -> Iterator[tuple[int, int]]:
    """Yield the number of each row with a cell that looks like several rows, and the cell's number of lines.

    Such a cell lacks a quotation mark: half of its lines or more, without the first, divide into all columns. Separators
    before a blank do not count, as texts have commas too.
    """
    row_like = re.compile(rf"[^{separator}]*(?:{separator}(?=\S)[^{separator}]*){{{columns - 1}}}")
    for number, row in enumerate(rows, start=first):
        for cell in row if columns > 1 else ():
            lines = cell.splitlines()[1:] if "\n" in cell else []
            if lines and 2 * sum(map(bool, map(row_like.fullmatch, lines))) >= len(lines):
                yield number, len(lines) + 1


class _Column:
    """Entries of a column, where equal strings are one object if few differ, as in labels."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self._known: dict[str, str] | None = {}

    def add(self, texts: Sequence[str]) -> None:
        """Append entries, without surrounding spaces."""
        stripped = list(map(str.strip, texts))
        if self._known is not None:
            stripped = list(map(self._known.setdefault, stripped, stripped))
            if len(self._known) > _ROWS:
                self._known = None
        self.entries += stripped


@contextmanager
def arrow_errors(path: Path) -> Iterator[Any]:
    """Context manager that yields pyarrow and converts its errors to `DataError`."""
    try:
        import pyarrow  # optional dependency
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{path}: requires pyarrow; run pip install 'attngraft[data]'") from None
    try:
        check_regular(path)
        yield pyarrow
    except AttngraftError:
        raise
    except (OSError, ValueError, OverflowError, struct.error, pyarrow.ArrowException) as error:  # overflow of dates
        raise DataError(f"{path}: cannot be read as {path.suffix} ({error})") from None


def check_parquet(path: Path, metadata: Any) -> None:
    """Check the size of a parquet file's table: equal rows take nearly no space in the file.

    Raises:
        UnsuitableFile: see `opening.check_unpacked`.
    """
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    unpacked = max(sum(group.total_byte_size for group in groups), _ENTRY * metadata.num_rows * metadata.num_columns)
    check_unpacked(path, unpacked, path.stat().st_size)


def _parquet(path: Path) -> LabelTable:
    with arrow_errors(path) as pa:
        check_parquet(path, pa.parquet.read_metadata(path))
        file, size, number = pa.parquet.ParquetFile(path), 0, 0
        if (twice := repeated(file.schema_arrow.names)) is not None:
            raise DataError(f"{path}: has two columns {quoted(twice)}; rename one")
        columns: dict[str, list[Any]] = {name: [] for name in file.schema_arrow.names}
        for batch in file.iter_batches():  # in memory, equal texts of a dictionary are repeated
            number += batch.num_rows
            for name, column in zip(columns, batch.columns, strict=True):
                plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
                size += plain.nbytes
                check_unpacked(path, size, path.stat().st_size)
                columns[name] += plain.to_pylist()
        if number != file.metadata.num_rows:
            raise ValueError(f"it declares {file.metadata.num_rows} rows, but has {number}")
    return LabelTable(where=str(path), columns=columns, numbers=list(range(number)))


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Labels of all rows: (N,) int64, (N, K) uint8 if `multilabel`, or (N, K) float64 from `read_numbers`."""

    classes: tuple[str, ...]
    values: np.ndarray
    multilabel: bool
    note: str = ""  #: how the labels were read, for the report


def find_column(table: LabelTable, names: Sequence[str], *, exclude: Collection[str] = ()) -> str | None:
    """Return the column with the first of `names` that exists, ignoring case.

    Raises:
        DataError: two columns have it.
    """
    found: dict[str, list[str]] = {}
    for column in table.columns:
        if column not in exclude:
            found.setdefault(column.lower().replace(" ", "_"), []).append(column)
    chosen = next((found[name] for name in names if name in found), [])
    if len(chosen) > 1:
        raise DataError(
            f"{table.where}: has columns {quoted(chosen[0])} and {quoted(chosen[1])}; rename one, or name the column"
        )
    return chosen[0] if chosen else None


def read_labels(table: LabelTable, config: DataConfig, *, exclude: set[str]) -> Labels:
    """Read the labels of `table`; columns in `exclude` are not labels.

    Raises:
        DataError: no column of labels is found, or a row has no label where one is required.
        ConfigError: a column is unknown.
    """
    columns, note = config.label_columns, ""
    if columns is None and config.label_column is None:
        columns = zero_one_columns(table, exclude=exclude)
        note = "" if columns is None else f"Labels are read from the 0/1 columns {', '.join(columns)}."
    if columns is not None:
        values = no_labels(len(table), len(columns), where=table.where)
        for column, name in enumerate(columns):
            for row, entry in enumerate(table.column(name, field="label_columns")):
                text = _word(entry).lower()
                if text not in _YES and text not in _NO and text not in MISSING:
                    raise DataError(
                        f"{table.line(row)}: column {name!r} contains {text!r}; label_columns must be 0 or 1"
                    )
                values[row, column] = text in _YES
        return Labels(classes=tuple(columns), values=values, multilabel=True, note=note)
    name = config.label_column or label_column(table, exclude)
    entries = table.column(name, field="label_column")
    lists = as_lists(table, name, entries, config)
    if lists is None:
        only_choice = config.label_column is not None or len(table.columns) <= len(exclude) + 1
        return _single(table, name, note="" if only_choice else f"Labels are read from column {name!r}.")
    rows, note = lists
    classes = tuple(sorted({label for labels in rows for label in labels}, key=natural))
    number = {label: i for i, label in enumerate(classes)}
    values = no_labels(len(rows), len(classes), where=table.where, given=sum(map(len, rows)))
    for row, labels in enumerate(rows):
        for label in labels:
            values[row, number[label]] = 1
    return Labels(classes=classes, values=values, multilabel=True, note=note)


def zero_one_columns(table: LabelTable, *, exclude: Collection[str]) -> tuple[str, ...] | None:
    """Return the columns that are not in `exclude` if they contain only 0 and 1, otherwise None.

    Also None if there is only one column, or if one has a usual name of a column of labels.
    """
    rest = tuple(name for name in table.columns if name not in exclude)
    if len(rest) < 2 or find_column(table, (*SINGLE, *LISTS), exclude=exclude) is not None:
        return None
    return rest if all(is_zero_one(table.columns[name]) for name in rest) else None


def is_zero_one(entries: Sequence[Any]) -> bool:
    """Return whether all entries are 0, 1, or spellings of these."""
    return all((word := _word(entry).lower()) in _YES or word in _NO for entry in entries)


def read_numbers(table: LabelTable, config: DataConfig, *, exclude: set[str]) -> Labels:
    """Read the columns of numbers like `read_labels`; the names of the columns become the classes.

    Raises:
        DataError: no column of numbers is found, or an entry is not a number.
        ConfigError: a column is unknown.
    """
    names, field = config.label_columns, "label_columns"
    if names is None:
        column, field = config.label_column or find_column(table, NUMBERS, exclude=exclude), "label_column"
        rest = [name for name in table.columns if name not in exclude]
        if column is None and len(rest) != 1:
            raise DataError(
                f"{table.where}: cannot find the column of numbers (looked for {', '.join(NUMBERS)}); name "
                "it with --set task.data.label_column=NAME, or several with --set 'task.data.label_columns=[a,b]'; "
                f"available: {', '.join(rest) or 'none'}"
            )
        names = (column or rest[0],)
    values = np.zeros((len(table), len(names)))
    for position, name in enumerate(names):
        entries = table.column(name, field=field)
        values[:, position] = list(map(as_number, entries))
        for row in np.flatnonzero(~np.isfinite(values[:, position]))[:1].tolist():
            raise DataError(
                f"{table.line(row)}: column {name!r} contains {_word(entries[row])!r}, not a number; correct it, or "
                "remove the row"
            )
        for row in np.flatnonzero(np.abs(values[:, position]) > LARGEST_NUMBER)[:1].tolist():
            raise DataError(
                f"{table.line(row)}: column {name!r} contains {_word(entries[row])!r}, above {LARGEST_NUMBER:g}; divide "
                "the column, or correct the number"
            )
    return Labels(classes=names, values=values, multilabel=False)


def label_column(table: LabelTable, exclude: set[str]) -> str:
    """Return the column of labels: with a usual name, or the only one that is not in `exclude`.

    Raises:
        DataError: there is no such column.
    """
    name = find_column(table, (*SINGLE, *LISTS), exclude=exclude)
    if name is not None:
        return name
    rest = [name for name in table.columns if name not in exclude]
    if len(rest) == 1:
        return rest[0]
    raise DataError(
        f"{table.where}: cannot find the column of labels (looked for {', '.join((*SINGLE[:3], LISTS[0]))}, ...); name "
        "it with --set task.data.label_column=NAME, or one 0/1 column per class with --set "
        "'task.data.label_columns=[a,b]'; "
        f"available: "
        f"{', '.join(table.columns)}"
    )


def _single(table: LabelTable, name: str, *, note: str) -> Labels:
    labels = _words(plain_entries(table, name))
    different = set(labels)
    if missing := {text for text in different if text.lower() in MISSING}:
        row = next(row for row, text in enumerate(labels) if text in missing)
        raise DataError(f"{table.line(row)}: column {name!r} contains no label; add one or remove the row")
    classes = tuple(sorted(different, key=natural))
    number = {label: i for i, label in enumerate(classes)}
    values = np.fromiter(map(number.__getitem__, labels), dtype=np.int64, count=len(labels))
    return Labels(classes=classes, values=values, multilabel=False, note=note)


def as_number(entry: Any) -> float:
    """Return an entry as a number; NaN if it is none."""
    try:
        if isinstance(entry, str):
            return parse_numbers([entry])[0]
        return math.nan if entry is None or isinstance(entry, bool | bytes) else float(entry)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _word(entry: Any) -> str:
    if entry is None:
        return ""
    if isinstance(entry, float) and entry.is_integer():
        return str(int(entry))
    return str(entry).strip()


def _words(entries: Sequence[Any]) -> list[str]:
    """Return `_word` of each entry."""
    if set(map(type, entries)) == {str}:
        return list(map(str.strip, entries))
    return list(map(_word, entries))


def as_lists(
    table: LabelTable, name: str, entries: Sequence[Any], config: DataConfig
) -> tuple[list[list[str]], str] | None:
    """Return the list of labels of each row and a note on how it was read; None if rows have single labels."""
    if config.label_separator == "none":
        return None
    if any(isinstance(entry, list) for entry in entries):
        for row, entry in enumerate(entries):
            if not isinstance(entry, list) and _word(entry).lower() not in MISSING:
                raise DataError(
                    f"{table.line(row)}: column {name!r} contains {quoted(entry)}, but lists in other rows; make it a list"
                )
            if isinstance(entry, list) and any(isinstance(label, _NOT_PLAIN) for label in entry):
                raise DataError(
                    f"{table.line(row)}: column {name!r} contains {quoted(entry)}; write a list of texts or numbers"
                )
        rows = [_present(entry) if isinstance(entry, list) else [] for entry in entries]
        _refuse_vectors(table, name, rows)
        return rows, f"Column {name!r} has lists of labels."
    for row, entry in enumerate(entries):
        if isinstance(entry, _NOT_PLAIN):
            raise DataError(
                f"{table.line(row)}: column {name!r} contains {quoted(entry)}; write a list of texts or numbers"
            )
    texts = _words(entries)
    different = set(texts)
    if config.label_separator is not None:
        separator: str | None = SEPARATORS[config.label_separator]
    else:
        brackets = [text.startswith("[") and text.endswith("]") for text in different if text.lower() not in MISSING]
        if brackets and all(brackets):
            rows = [_json_list(table, row, name, text) for row, text in enumerate(texts)]
            _refuse_vectors(table, name, rows)
            return rows, f"Column {name!r} has JSON lists of labels."
        marks = SEPARATORS.values() if name.lower() in LISTS else ()
        separator = next((mark for mark in marks if any(mark in text for text in different)), None)
    if separator is None:
        return None
    labels = {
        text: [label.strip() for label in text.split(separator) if label.strip()] if text.lower() not in MISSING else []
        for text in different
    }
    named = {label.lower() for row in labels.values() for label in row}
    if both := sorted(text for text in different if text and text.lower() in MISSING & named):
        raise DataError(
            f"{table.where}: column {name!r} contains {quoted(both[0])} alone, which means no label, and among labels; "
            "rename the label, or leave the cells without a label empty"
        )
    rows = [labels[text] for text in texts]
    note = f"Labels in column {name!r} are separated by {separator!r}"
    return (
        rows,
        f"{note} (change it with --set task.data.label_separator=comma)."
        if config.label_separator is None
        else f"{note}.",
    )


def _refuse_vectors(table: LabelTable, name: str, rows: Sequence[Sequence[str]]) -> None:
    """Check that lists of labels are no vectors with 0 or 1 for each class, in which labels are repeated."""
    lengths = {len(row) for row in rows if row}
    if len(lengths) == 1 and {*itertools.chain(*rows)} <= {"0", "1"} and any(len({*row}) < len(row) for row in rows):
        raise DataError(
            f"{table.where}: column {name!r} has vectors of 0 and 1; write lists of the labels that are present, or a "
            "column for each class (task.data.label_columns)"
        )


def _json_list(table: LabelTable, row: int, name: str, text: str) -> list[str]:
    if text.lower() in MISSING:
        return []
    try:
        labels = parse_json(text)
    except ValueError:
        try:
            labels = parse_json(text.replace("'", '"'))  # accept Python's repr of a list
        except ValueError as error:
            raise DataError(
                f"{table.line(row)}: column {name!r} does not contain a JSON list of labels ({error}): {text[:60]}"
            ) from None
    if any(isinstance(label, _NOT_PLAIN) for label in labels):
        raise DataError(f"{table.line(row)}: column {name!r} contains {quoted(text)}; write a list of texts or numbers")
    return _present(labels)


def _present(labels: Sequence[Any]) -> list[str]:
    """Return the labels of a list without null, NaN and empty texts."""
    return [word for word in (_word(label) for label in labels if label == label) if word]
