"""Records of an evaluation, with one row per example and columns of any shape, and their .npz files.

A column is a stacked array (N, ...) or, where examples differ in size (tokens, boxes, masks), a list of N arrays with the
same dtype and number of axes. Metrics are computed from the columns in `statistics`; the columns in `outputs` are for
users. A file stores a stacked column as one array, and a ragged column as three:

    boxes            the values of all examples, flat
    boxes.offsets    (N + 1,): start and end of each example's values
    boxes.shapes     (N, axes)

`np.load` reads the arrays of a file on access, so a single column can be read without the rest.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import TrainingError
from attngraft.files import atomic_file
from attngraft.opening import DAMAGE, open_npz
from attngraft.suggest import first_line

Column = np.ndarray | list[np.ndarray]  #: (N, ...), or one array per example

NAME, OUTPUTS = "name", "output_columns"  #: keys in a file: names of the examples, and of the output columns
EXTRA = ("score", "binary")  #: keys of further arrays, if the primary metric is a mean of scores (see `RecordTable`)
_OFFSETS, _SHAPES = ".offsets", ".shapes"
_EXAMPLES = "examples.of_part"  #: key in a process's file: indices of its examples


@dataclass(frozen=True, kw_only=True)
class Records:
    """The rows of one batch, on the CPU, as returned by `Task.infer`."""

    statistics: Mapping[str, Column]  #: input of `Task.measure`, computed from predictions and labels
    outputs: Mapping[str, Column] = field(default_factory=dict)  #: for users, such as captions, boxes or masks


@dataclass(frozen=True, kw_only=True)
class RecordTable(Mapping[str, Column]):
    """All columns of an evaluation, in the order of the split; a mapping from column names."""

    names: np.ndarray  #: (N,), one per example
    columns: Mapping[str, Column]
    outputs: frozenset[str] = frozenset()  #: names of the columns that are outputs, not statistics
    score: np.ndarray | None = None  #: (N,), each example's score, if the primary metric is a mean of scores
    binary: bool = False  #: whether the scores are 0 or 1

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def array(self, name: str) -> np.ndarray:
        """Return a column whose rows all have the same shape.

        Raises:
            TrainingError: the column is ragged.
        """
        column = self[name]
        if isinstance(column, list):
            raise TrainingError(f"records: the rows of {name} have different shapes; Task.infer must pad them")
        return column


def concatenated(tables: Sequence[RecordTable]) -> RecordTable:
    """Return the rows of several tables with the same columns, one table after the other; columns are read on access."""
    if len(tables) == 1:
        return tables[0]
    scores = [table.score for table in tables if table.score is not None]
    return RecordTable(
        names=np.concatenate([table.names for table in tables]),
        columns=_ConcatenatedColumns(tables),
        outputs=tables[0].outputs,
        score=np.concatenate(scores) if len(scores) == len(tables) else None,
        binary=all(table.binary for table in tables),
    )


class _ConcatenatedColumns(Mapping[str, Column]):
    """Columns of several tables."""

    def __init__(self, tables: Sequence[RecordTable]) -> None:
        self._tables = tables
        self._names = [name for name in tables[0] if all(name in table for table in tables)]

    def __getitem__(self, name: str) -> Column:
        if name not in self._names:
            raise KeyError(name)
        return _concatenated([table[name] for table in self._tables])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class RecordCollector:
    """Collect the records of batches in any order; repeated examples are ignored.

    Args:
        names: names of the split's examples.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._seen = np.zeros(len(names), dtype=bool)
        self._batches: list[tuple[np.ndarray, dict[str, Column]]] = []  # indices and rows of each batch
        self._outputs: set[str] = set()

    def add(self, indices: np.ndarray, records: Records) -> None:
        """Add the rows of the examples at `indices`."""
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self._names):
            raise TrainingError(
                f"evaluation: indices {indices.min()} to {indices.max()} are out of range for {len(self._names)} examples"
            )
        self._outputs |= records.outputs.keys()
        self._keep(indices, {**records.statistics, **records.outputs})

    def write_part(self, path: Path) -> None:
        """Write the rows that this process collected, for `add_part`.

        Raises:
            StorageError: the file cannot be written.
        """
        examples, columns = self._joined()
        names = np.asarray([self._names[index] for index in examples], dtype=np.str_)
        part = RecordTable(names=names, columns={**columns, _EXAMPLES: examples}, outputs=frozenset(self._outputs))
        write_records(path, part, compress=False)

    def add_part(self, path: Path, *, outputs: bool = True) -> None:
        """Add the rows of another process's file; `outputs=False` reads only the statistics.

        Raises:
            TrainingError: the file is missing or damaged.
        """
        with open_records(path) as part:
            kept = [name for name in part if name != _EXAMPLES and (outputs or name not in part.outputs)]
            self._outputs |= part.outputs & set(kept)
            self._keep(part.array(_EXAMPLES), {name: part[name] for name in kept})

    def _keep(self, indices: np.ndarray, columns: Mapping[str, Column]) -> None:
        examples, rows = np.unique(indices, return_index=True)
        new = ~self._seen[examples]
        self._seen[examples] = True
        self._batches.append((examples[new], {name: rows_of(column, rows[new]) for name, column in columns.items()}))

    def table(self) -> RecordTable:
        """Return all rows in the order of the split.

        Raises:
            TrainingError: some examples were not evaluated, or a column does not have one row per example.
        """
        if not self._seen.all():
            missing = np.flatnonzero(~self._seen)
            names = ", ".join(self._names[int(index)] for index in missing[:3])
            raise TrainingError(f"evaluation: {len(missing)} of {len(self._names)} examples are missing ({names}, ...)")
        every = np.asarray(list(self._names), dtype=np.str_)
        return RecordTable(names=every, columns=self._joined()[1], outputs=frozenset(self._outputs))

    def _joined(self) -> tuple[np.ndarray, dict[str, Column]]:
        """Return the sorted indices of the collected examples, and their rows of each column."""
        examples = np.concatenate([np.zeros(0, dtype=np.int64), *(examples for examples, _ in self._batches)])
        order = np.argsort(examples, kind="stable")
        columns: dict[str, Column] = {}
        for name in dict.fromkeys(name for _, of_batch in self._batches for name in of_batch):
            batches = [of_batch[name] for _, of_batch in self._batches if name in of_batch]
            rows = sum(map(len, batches))
            if rows != len(order):
                raise TrainingError(
                    f"evaluation: column {name} has {rows} rows for {len(order)} examples; fix Task.infer"
                )
            columns[name] = rows_of(_concatenated(batches), order)
        return examples[order], columns


def rows_of(column: Column, rows: np.ndarray) -> Column:
    """Return the rows of a column with the indices `rows`."""
    return [column[row] for row in rows] if isinstance(column, list) else column[rows]


def _concatenated(batches: Sequence[Column]) -> Column:
    """Concatenate the parts of a column from all batches; the result is ragged if any part is."""
    stacks = [batch for batch in batches if not isinstance(batch, list)]
    return np.concatenate(stacks) if len(stacks) == len(batches) else [row for batch in batches for row in batch]


def write_records(path: Path, table: RecordTable, *, compress: bool = True) -> None:
    """Write a table to an .npz file, atomically.

    Raises:
        StorageError: the file cannot be written.
    """
    arrays: dict[str, Any] = {NAME: table.names}
    if table.score is not None:
        arrays |= {"score": table.score, "binary": np.asarray(table.binary)}
    for name, column in table.columns.items():
        if not isinstance(column, list):
            arrays[name] = column
            continue
        arrays[name] = np.concatenate([row.reshape(-1) for row in column]) if column else np.zeros(0)
        arrays[name + _OFFSETS] = np.cumsum([0, *(row.size for row in column)])
        arrays[name + _SHAPES] = np.array([row.shape for row in column], dtype=np.int64)
    if table.outputs:
        arrays[OUTPUTS] = np.array(sorted(table.outputs))
    with atomic_file(path) as file:
        (np.savez_compressed if compress else np.savez)(file, allow_pickle=False, **arrays)


@contextmanager
def open_records(path: Path) -> Iterator[RecordTable]:
    """Context manager that opens a table; its columns are read from the file on access.

    Raises:
        TrainingError: the file is missing or damaged, here or on access.
    """
    with ExitStack() as stack:
        with _damage_explained(path):
            file = stack.enter_context(open_npz(path))
            outputs = frozenset(map(str, file[OUTPUTS])) if OUTPUTS in file.files else frozenset()
            score, binary = (file[name] if name in file.files else None for name in EXTRA)
            names = file[NAME]
            if (
                names.ndim != 1
                or (score is not None and score.shape != names.shape)
                or (binary is not None and binary.ndim)
            ):
                raise ValueError(f"{NAME}, {' and '.join(EXTRA)} do not have the shapes that were written")
            score = None if score is None else score.astype(float)
        columns = _FileColumns(path, file, len(names))
        yield RecordTable(names=names, columns=columns, outputs=outputs, score=score, binary=bool(binary))


class MissingColumnError(TrainingError, KeyError):
    """A column that a file does not have."""

    __str__ = Exception.__str__  # KeyError.__str__ would quote the message


class _FileColumns(Mapping[str, Column]):
    """Columns of an open .npz file, each read on access, because logits and masks may be large."""

    def __init__(self, path: Path, file: np.lib.npyio.NpzFile, rows: int) -> None:
        self._path, self._file, self._rows = path, file, rows
        hidden = (NAME, OUTPUTS, *EXTRA, "allow_pickle")  # `savez` of NumPy before 2.1 stored its argument
        self._names = [name for name in file.files if name not in hidden and not name.endswith((_OFFSETS, _SHAPES))]

    def __getitem__(self, name: str) -> Column:
        if name not in self._names:
            raise MissingColumnError(
                f"{self._path}: lacks the column {name}; delete this run's folder to train it again"
            )
        with _damage_explained(self._path):
            values: np.ndarray = self._file[name]
            found: Column = values
            if name + _OFFSETS in self._file.files:
                offsets, shapes = self._file[name + _OFFSETS], self._file[name + _SHAPES]
                rows = zip(offsets[:-1], offsets[1:], shapes, strict=True)
                found = [values[start:stop].reshape(shape) for start, stop, shape in rows]
            if len(found) not in (0, self._rows):
                raise ValueError(f"{name} has {len(found)} rows for {self._rows} examples")
            return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextmanager
def _damage_explained(path: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        raise TrainingError(
            f"{path}: the run's predictions cannot be read ({first_line(error)}); delete this run's folder to train it again"
        ) from None
