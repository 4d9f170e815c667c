"""Texts with labels from tables, split into training and validation."""

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attngraft.errors import DataError
from attngraft.files import write_atomically
from attngraft.tasks.images.sources.base import find_test, find_train, find_val
from attngraft.tasks.images.sources.manifest import SPLIT_NAMES
from attngraft.tasks.images.sources.splitting import DEFAULT_FRACTION, HEADER
from attngraft.tasks.images.sources.table import KINDS, MISSING, LabelTable, find_column, read_labels, read_table
from attngraft.tasks.text.config import TextDataConfig

TEXT_NAMES = (
    *("text", "sentence", "review", "content", "comment", "message", "document", "tweet", "description", "utterance"),
    *("question", "query", "body", "abstract", "title"),
)
_SHOWN = 40  #: number of characters of a text in its name


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Texts with names and labels (N,)."""

    names: Sequence[str]
    texts: Sequence[str]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.names)

    def take(self, indices: np.ndarray) -> "Texts":
        names, texts = ([values[i] for i in indices] for values in (self.names, self.texts))
        return Texts(names=names, texts=texts, labels=self.labels[indices])

    def digest(self) -> str:
        """Return an identifier of the set of names, independent of their order."""
        return hashlib.sha256("\n".join(sorted(self.names)).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class TextSource:
    """Training, validation and test texts of a source, and their classes."""

    where: str
    column: str  #: column of the texts
    classes: tuple[str, ...]
    train: Texts
    val: Texts
    test: Texts | None
    origin: str  #: description of the split, for the report
    drawn: bool  #: whether the split is random
    notes: tuple[str, ...] = ()

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of texts of each class, by split."""
        return {
            part: dict(zip(self.classes, np.bincount(texts.labels, minlength=len(self.classes)).tolist(), strict=True))
            for part, texts in self.parts().items()
        }

    def parts(self) -> dict[str, Texts]:
        """Return the texts of each split."""
        return {"train": self.train, "val": self.val} | ({} if self.test is None else {"test": self.test})


def open_texts(config: TextDataConfig, *, saved_split: Path | None = None) -> TextSource:
    """Read the tables and split the texts; `saved_split` is a file that replaces the random split.

    Raises:
        DataError: the data cannot be used; the message names the file and the remedy.
        ConfigError: a column is unknown.
    """
    table, side, origin, test_split = _read(Path(config.source).expanduser(), config)
    if (side < 0).any():
        table, side = _rows(table, np.flatnonzero(side >= 0)), side[side >= 0]
    column = text_column(table, config.text_column)
    split_column = config.split_column or find_column(table, SPLIT_NAMES)
    labels = read_labels(table, config.as_table(), exclude={column, split_column or ""})
    texts = _texts(table, column)
    every = Texts(names=text_names(texts), texts=texts, labels=labels.values)
    if len(labels.classes) < 2:
        raise DataError(f"{table.where}: all texts have the label {labels.classes[0]!r}; training needs two classes")
    drawn = config.split_file is None and not (side == 1).any()
    if config.split_file is not None:
        side, name = _listed(every, Path(config.split_file).expanduser()), Path(config.split_file).name
        origin = f"{origin}, split by {name}"
    elif drawn:
        fraction = DEFAULT_FRACTION if config.val_fraction is None else config.val_fraction
        origin = f"{fraction:g} of each class of {origin} for validation, at random with split_seed {config.split_seed}"
        side = (
            _draw(every, labels.classes, fraction, config, table)
            if saved_split is None
            else _listed(every, saved_split)
        )
    train, val = every.take(np.flatnonzero(side == 0)), every.take(np.flatnonzero(side == 1))
    absent = sorted(set(range(len(labels.classes))) - set(train.labels.tolist()))
    if absent or not len(val):
        what = f"training text of class {labels.classes[absent[0]]!r}" if absent else "text for validation"
        raise DataError(f"{table.where}: no {what} ({origin}); add some, or change the split")
    twice = len(set(train.texts) & set(val.texts))
    notes = [labels.note] if labels.note else []
    if twice:
        notes.append(f"{twice} validation {'text is' if twice == 1 else 'texts are'} also in the training split.")
    test, note = None, ""
    if test_split is not None:
        test, note = _test_texts(config, test_split, labels.classes)
    elif config.test_split not in (None, "none"):
        raise DataError(
            f"{table.where}: no split {config.test_split!r} (task.data.test_split) besides training and validation; "
            "correct the name, or remove it"
        )
    notes += [note] if note else []
    return TextSource(
        where=table.where,
        column=column,
        classes=labels.classes,
        train=train,
        val=val,
        test=test,
        origin=origin,
        drawn=drawn,
        notes=tuple(notes),
    )


def _test_texts(config: TextDataConfig, split: str, classes: Sequence[str]) -> tuple[Texts | None, str]:
    """Return the texts of the test split, or None and a note on why it cannot be used."""
    only = replace(config, val_split=split, test_split="none", val_fraction=None, split_file=None)
    try:
        source = open_texts(only)
        unknown = sorted({source.classes[label] for label in source.val.labels} - {*classes})
        if unknown:
            raise DataError(f"it has the class {unknown[0]!r}, which training and validation lack")
        position = [classes.index(name) if name in classes else -1 for name in source.classes]
        return replace(source.val, labels=np.array(position)[source.val.labels]), ""
    except DataError as error:
        if config.test_split is not None:
            raise DataError(f"{config.source}: the test split {split} cannot be used: {error}") from None
        return None, f"The split {split} is not used as a test split: {error}"


def text_column(table: LabelTable, configured: str | None) -> str:
    """Return the name of the column of texts.

    Raises:
        ConfigError: there is no such column.
        DataError: no column is found.
    """
    if configured is not None:
        table.column(configured, field="text_column")
        return configured
    found = find_column(table, TEXT_NAMES)
    if found is None:
        raise DataError(
            f"{table.where}: cannot find the column of texts (looked for {', '.join(TEXT_NAMES[:4])}, ...); name it with "
            f"--set task.data.text_column=NAME; available: {', '.join(table.columns)}"
        )
    return found


def read_texts(path: Path, column: str) -> list[str]:
    """Return the texts of a table (`column`, or a column with a usual name), or the lines of any other file.

    Raises:
        DataError: the file cannot be read, or has no texts.
    """
    if path.suffix.lower() in KINDS:
        table = read_table(path)
        name = column if column in table.columns else text_column(table, None)
        return ["" if entry is None else str(entry) for entry in table.columns[name]]
    try:
        lines = path.read_bytes().decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise DataError(f"{path}: cannot be read ({reason})") from None
    return [line for line in lines if line.strip()]


def text_names(texts: Sequence[str]) -> list[str]:
    """Return unique names: the start of each text and a hash, with a number for repeated texts.

    A name depends only on its text and earlier copies of it, so a saved split stays valid when rows are added.
    """
    names, seen = [], Counter[str]()
    for text in texts:
        start = " ".join(text[: 2 * _SHOWN].split())
        start = start if len(start) <= _SHOWN else start[: _SHOWN - 1] + "…"
        name = f"{start} [{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}]"
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return names


def save_split(path: Path, train: Texts, val: Texts) -> None:
    """Write the names of both splits to `path`, in the format of split files of images.

    Raises:
        StorageError: the file cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows([name, part] for part, texts in (("train", train), ("val", val)) for name in texts.names)
    write_atomically(path, text.getvalue())


def _read(path: Path, config: TextDataConfig) -> tuple[LabelTable, np.ndarray, str, str | None]:
    """Return all rows, their splits (0: train, 1: val, -1: neither), a description, and the test split."""
    settings = config.as_table()
    if path.is_dir():
        tables = {each.stem: each for each in sorted(path.iterdir(), reverse=True) if each.suffix.lower() in KINDS}
        train = find_train(list(tables), settings, where=str(path))
        if train is None and len(tables) == 1:
            return _read(next(iter(tables.values())), config)
        if train is None:
            raise DataError(
                f"{path}: no train.csv, train.tsv or train.parquet; rename the training table to one of these, or give a "
                "single table"
            )
        val = find_val(list(tables), settings, train=train, where=str(path))
        test = find_test(list(tables), settings, used=(train, val), where=str(path))
        return *_together([read_table(tables[name]) for name in (train, val) if name is not None], path), test
    if not path.is_file() or path.suffix.lower() not in KINDS:
        what = "not a table" if path.is_file() else "no such file or folder"
        raise DataError(
            f"{path}: {what}; give a .csv, .tsv or .parquet with a column of texts and a column of labels, or a folder "
            "with train.csv and val.csv"
        )
    table, origin = read_table(path), f"the rows of {path.name}"
    name = config.split_column or find_column(table, SPLIT_NAMES)
    entries = [] if name is None else [str(entry) for entry in table.column(name, field="split_column")]
    values, where = sorted({entry for entry in entries if entry.lower() not in MISSING}), f"{path} (column {name!r})"
    train = find_train(values, settings, where=where) if values else None
    if train is None:
        if config.split_column is not None:
            raise DataError(
                f"{where}: no training rows; name their split with --set task.data.train_split=NAME; available: {values}"
            )
        if asked := config.val_split or config.train_split:
            raise DataError(
                f"{path}: no split {asked!r}, because no column names splits; name one with --set "
                "task.data.split_column=NAME"
            )
        return table, np.zeros(len(table), dtype=np.int64), origin, None
    val = find_val(values, settings, train=train, where=where)
    side = np.array([0 if entry == train else 1 if entry == val else -1 for entry in entries])
    test = find_test(values, settings, used=(train, val), where=where)
    return table, side, f"the rows with {name!r} {train}" + (f" and {val}" if val else ""), test


def _together(tables: list[LabelTable], folder: Path) -> tuple[LabelTable, np.ndarray, str]:
    first, origin = tables[0], " and ".join(Path(table.where).name for table in tables)
    for table in tables[1:]:
        if missing := [name for name in first.columns if name not in table.columns]:
            raise DataError(f"{table.where}: has no column {missing[0]!r}, which {Path(first.where).name} has; add it")
    both = LabelTable(
        where=str(folder),
        columns={name: [entry for table in tables for entry in table.columns[name]] for name in first.columns},
        numbers=[f"{Path(table.where).name}, row {number}" for table in tables for number in table.numbers],
    )
    return both, np.repeat(np.arange(len(tables)), [len(table) for table in tables]), origin


def _rows(table: LabelTable, rows: np.ndarray) -> LabelTable:
    columns = {name: [entries[i] for i in rows] for name, entries in table.columns.items()}
    return LabelTable(where=table.where, columns=columns, numbers=[table.numbers[i] for i in rows])


def _texts(table: LabelTable, column: str) -> list[str]:
    texts = ["" if entry is None else str(entry) for entry in table.columns[column]]
    empty = next((row for row, text in enumerate(texts) if not text.strip()), None)
    if empty is not None:
        raise DataError(f"{table.line(empty)}: column {column!r} is empty; remove the row")
    return texts


def _draw(
    texts: Texts, classes: Sequence[str], fraction: float, config: TextDataConfig, table: LabelTable
) -> np.ndarray:
    stream = np.random.RandomState(config.split_seed)  # its streams are the same in all NumPy versions
    side = np.zeros(len(texts), dtype=np.int64)
    for label, name in enumerate(classes):
        members = np.flatnonzero(texts.labels == label)
        if len(members) == 1:
            raise DataError(
                f"{table.where}: class {name!r} has a single text, which cannot be split into training and validation; add "
                "texts of this class, or remove the row"
            )
        side[stream.permutation(members)[: min(max(1, round(len(members) * fraction)), len(members) - 1)]] = 1
    return side


def _listed(texts: Texts, path: Path) -> np.ndarray:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            parts = {row[0]: row[1] for row in csv.reader(file) if len(row) == 2}
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a split file ({error})") from None
    unknown = [name for name in texts.names if name not in parts]
    if unknown:
        raise DataError(
            f"{path}: does not list {len(unknown)} of {len(texts)} texts ({unknown[0]}); if they were added since, remove "
            "them from the data, add rows for them to this file, or start in another folder"
        )
    return np.array([int(parts[name] == "val") for name in texts.names])
