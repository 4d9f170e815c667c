"""Texts with labels from tables, split into training and validation."""

import hashlib
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attngraft.errors import DataError
from attngraft.files import user_path
from attngraft.opening import access_errors, read_data
from attngraft.tasks.images.checks import copies_refusal
from attngraft.tasks.images.sources.base import alike_classes, check_classes
from attngraft.tasks.images.sources.manifest import SPLIT_NAMES, read_splits
from attngraft.tasks.images.sources.splitting import POOLED, divide
from attngraft.tasks.images.sources.table import (
    KINDS,
    LabelTable,
    find_column,
    plain_entries,
    read_groups,
    read_labels,
    read_table,
)
from attngraft.tasks.text.config import TextDataConfig
from attngraft.tasks.text.tokenizer import LONGEST

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
    drawn: Mapping[str, Texts]  #: train and val, or folds by number, of a random split; empty if it is not random
    notes: tuple[str, ...] = ()
    refusal: str = ""  #: why no new run should train on these texts, see `TaskData`

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of texts of each class, by split."""
        return {
            part: dict(zip(self.classes, np.bincount(texts.labels, minlength=len(self.classes)).tolist(), strict=True))
            for part, texts in self.parts().items()
        }

    def parts(self) -> dict[str, Texts]:
        """Return the texts of each split."""
        return {"train": self.train, "val": self.val} | ({} if self.test is None else {"test": self.test})


@access_errors()
def open_texts(config: TextDataConfig, *, saved_split: Path | None = None) -> TextSource:
    """Read the tables and split the texts; `saved_split` is a file that replaces the random split.

    Raises:
        DataError: the data cannot be used; the message names the file and the remedy.
        ConfigError: a column is unknown.
    """
    path, settings = user_path(config.source), config.as_table()
    if not path.is_dir() and (not path.exists() or path.suffix.lower() not in KINDS):
        what = "not a table" if path.exists() else "no such file or folder"
        raise DataError(
            f"{path}: {what}; give a .csv, .tsv, .jsonl or .parquet with a column of texts and a column of labels, or a "
            "folder with train.csv and val.csv"
        )
    found = read_splits(path, settings).used()
    table, in_val, origin = found.table, found.side == 1, found.origin
    column = text_column(table, config.text_column)
    split_column = config.split_column or find_column(table, SPLIT_NAMES)
    labels = read_labels(table, settings, exclude={column, split_column or "", config.group_column or ""})
    texts = _texts(table, column)
    every = Texts(names=text_names(texts), texts=texts, labels=labels.values)
    check_classes(labels.classes, where=table.where)
    if len(labels.classes) < 2:
        raise DataError(f"{table.where}: all texts have the label {labels.classes[0]!r}; training needs two classes")
    drawn = config.split_file is None and (config.folds is not None or not in_val.any())
    notes = alike_classes(labels.classes)
    parts: dict[str, Texts] = {}
    if config.folds is not None and in_val.any():
        notes.append(POOLED.format(noun="text"))
    if drawn or config.split_file is not None:
        division = divide(
            every,
            every.labels,
            settings,
            where=table.where,
            origin=origin,
            classes=labels.classes,
            saved_split=saved_split,
            groups=None if config.group_column is None else read_groups(table, config.group_column),
            noun="text",
        )
        in_val, origin = division.in_val, division.origin
        notes += division.notes
        parts = {name: every.take(indices) for name, indices in division.indices().items()} if drawn else {}
    train, val = every.take(np.flatnonzero(~in_val)), every.take(np.flatnonzero(in_val))
    absent = sorted(set(range(len(labels.classes))) - set(train.labels.tolist()))
    if absent or not len(val):
        what = f"training text of class {labels.classes[absent[0]]!r}" if absent else "text for validation"
        raise DataError(f"{table.where}: no {what} ({origin}); add some, or change the split")
    test, note = None, ""
    if found.test_split is not None and config.folds is not None:
        note = f"The test split {found.test_split} is not used: folds divide training and validation texts only."
    elif found.test_split is not None:
        test, note = _test_texts(config, found.test_split, labels.classes)
    elif config.test_split not in (None, "none"):
        raise DataError(
            f"{table.where}: no split {config.test_split!r} (task.data.test_split) besides training and validation; "
            "correct the name, or remove it"
        )
    notes = [table.note, labels.note, *notes, note]
    refusals, known = [], set(train.texts)
    for name, texts_of in {"validation": val, "test": test}.items():
        if texts_of is None:
            continue
        if twice := len(set(train.texts) & set(texts_of.texts)):
            notes.append(f"{twice} {name} {'text is' if twice == 1 else 'texts are'} also in the training split.")
        if config.check != "off":
            copies = sum(text in known for text in texts_of.texts)
            refusals.append(copies_refusal(copies, len(texts_of), name, where=table.where, drawn=drawn, noun="text"))
        known |= set(texts_of.texts)
    return TextSource(
        where=table.where,
        column=column,
        classes=labels.classes,
        train=train,
        val=val,
        test=test,
        origin=origin,
        drawn=parts,
        notes=tuple(filter(None, notes)),
        refusal=next(filter(None, refusals), ""),
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
        name = column if column in table.columns else find_column(table, TEXT_NAMES)
        if name is None:
            raise DataError(
                f"{path}: cannot find the column of texts; call it {column!r}, as in training; available: "
                f"{', '.join(table.columns)}"
            )
        return ["" if entry is None else str(entry) for entry in plain_entries(table, name)]
    try:
        lines = read_data(path).decode("utf-8-sig").replace("\r\n", "\n").split("\n")  # U+2028 may be inside of a text
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else "not UTF-8 text"
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


def _texts(table: LabelTable, column: str) -> list[str]:
    texts = ["" if entry is None else str(entry) for entry in plain_entries(table, column)]
    if (row := next((row for row, text in enumerate(texts) if len(text) > LONGEST), None)) is not None:
        raise DataError(f"{table.line(row)}: column {column!r} has more than {LONGEST:,} characters; cut or remove it")
    empty = next((row for row, text in enumerate(texts) if not text.strip()), None)
    if empty is not None:
        raise DataError(f"{table.line(empty)}: column {column!r} is empty; remove the row")
    return texts
