"""Pairs of sentences from line-aligned files or tables, split into training, validation and test."""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import ConfigError, DataError
from attngraft.files import user_path
from attngraft.opening import access_errors
from attngraft.suggest import did_you_mean, shortened
from attngraft.tasks.images.checks import copies_refusal
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.base import TEST_NAMES, TRAIN_NAMES
from attngraft.tasks.images.sources.manifest import SPLIT_NAMES, SplitTable, read_splits, tables_in
from attngraft.tasks.images.sources.splitting import POOLED, divide
from attngraft.tasks.images.sources.table import (
    KINDS,
    FieldColumns,
    LabelTable,
    find_column,
    plain_entries,
    read_groups,
    read_table,
)
from attngraft.tasks.text.source import text_names
from attngraft.tasks.translation.config import TranslationConfig
from attngraft.tasks.translation.files import (
    aligned_files,
    aligned_tables,
    languages_of,
    no_training_files,
    usual_name,
    with_usual_splits,
)

SIDES = {"source": ("source", "src"), "target": ("target", "tgt", "trg")}  #: usual names of columns
NESTED = "translation"  #: column of objects with a sentence per language, as in data sets of Hugging Face
_GIVE = (
    "give a folder with train.en and train.de (plain or .gz), PREFIX for PREFIX.en and PREFIX.de, or a .csv, .tsv, .jsonl "
    "or .parquet with a column per language"
)
_SHOWN = 5  #: most lines listed in a note
LONGEST = 100_000  #: characters of a sentence
LONGEST_WORD = 10_000  #: characters without a space, as in Chinese; normalizing and dividing them takes quadratic time
_SAME = 0.2  #: part of pairs with equal sentences above which a note is written


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Sentences and their translations, in Unicode normal form C, without spaces at the ends."""

    names: Sequence[str]
    sources: Sequence[str]
    targets: Sequence[str]
    places: Sequence[str]  #: file and line or row of each pair, for messages

    def __len__(self) -> int:
        return len(self.names)

    def take(self, indices: np.ndarray) -> "Pairs":
        columns = (self.names, self.sources, self.targets, self.places)
        names, sources, targets, places = ([values[i] for i in indices] for values in columns)
        return Pairs(names=names, sources=sources, targets=targets, places=places)


@dataclass(frozen=True, kw_only=True)
class PairSource:
    """Training, validation and test pairs of a source."""

    where: str
    columns: tuple[str, str]  #: extensions of the files, or columns of the table: source, target
    train: Pairs
    val: Pairs
    test: Pairs | None
    origin: str  #: description of the split, for the report
    drawn: Mapping[str, Pairs]  #: train and val, or folds by number, of a random split; empty if it is not random
    notes: tuple[str, ...] = ()
    refusal: str = ""  #: why no new run should train on these pairs, see `TaskData`

    def parts(self) -> dict[str, Pairs]:
        """Return the pairs of each split."""
        return {"train": self.train, "val": self.val} | ({} if self.test is None else {"test": self.test})

    def words(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return the median and the largest number of words of a sentence, by split and side."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for part, pairs in self.parts().items():
            for side, texts in {"source": pairs.sources, "target": pairs.targets}.items():
                counts = [len(text.split()) for text in texts]
                longest = {"median": int(np.median(counts)), "longest": max(counts)}
                found.setdefault(part, {})[side] = longest
        return found


@access_errors()
def open_pairs(config: TranslationConfig, *, saved_split: Path | None = None) -> PairSource:
    """Read the files or tables and split the pairs; `saved_split` is a file that replaces the random split.

    Pairs with an empty sentence, and training pairs of more than `data.max_length` words, are not used.

    Raises:
        DataError: the data cannot be used; the message names the file, the line and the remedy.
        ConfigError: the languages are not set, or a column is unknown.
    """
    data, path, notes = config.data, user_path(config.data.source), list[str]()
    tables, settings = _tables(path, config, notes)
    found = read_splits(path, settings, tables=tables)
    table = _expanded(found.used().table)
    where, columns = table.where, _columns(table, config)
    every, rows = _pairs(table, columns, notes)
    in_val, origin = (found.used().side == 1)[rows], found.origin
    drawn = data.split_file is None and (data.folds is not None or not in_val.any())
    if data.folds is not None and in_val.any():
        notes.append(POOLED.format(noun="pair"))
    parts: dict[str, Pairs] = {}
    groups = None if data.group_column is None else read_groups(table, data.group_column)
    if drawn or data.split_file is not None:
        division = divide(
            every,
            np.zeros(len(every)),  # numbers are split without stratification
            settings,
            where=where,
            origin=origin,
            classes=(),
            saved_split=saved_split,
            groups=None if groups is None else [groups[row] for row in rows],
            noun="pair",
        )
        in_val, origin = division.in_val, division.origin
        notes += division.notes
        parts = {name: every.take(indices) for name, indices in division.indices().items()} if drawn else {}
    train, val = _short(every.take(np.flatnonzero(~in_val)), data.max_length, notes), every.take(np.flatnonzero(in_val))
    for name, pairs in {"training": train, "validation": val}.items():
        if not len(pairs):
            raise DataError(f"{where}: no pairs for {name} ({origin}); add some, or change the split")
    test = _test(path, config, found, tables, notes)
    refusal, known = "", set(zip(train.sources, train.targets, strict=True))
    for name, others in {"validation": val, "test": test}.items():
        pairs_of = [] if others is None else list(zip(others.sources, others.targets, strict=True))
        if copies := sum(pair in known for pair in pairs_of):
            notes.append(f"{copies} {name} {'pair is' if copies == 1 else 'pairs are'} also in an earlier split.")
        if data.check != "off" and not refusal:
            refusal = copies_refusal(copies, len(pairs_of), name, where=where, drawn=drawn, noun="pair")
        known |= set(pairs_of)
    return PairSource(
        where=where,
        columns=columns,
        train=train,
        val=val,
        test=test,
        origin=origin,
        drawn=parts,
        notes=tuple(notes),
        refusal=refusal,
    )


def _tables(
    path: Path, config: TranslationConfig, notes: list[str]
) -> tuple[dict[str, Callable[[], LabelTable]] | None, DataConfig]:
    """Return functions that read line-aligned files by split, or None for tables, and the settings of the split."""
    data, settings = config.data, config.data.as_table()
    if path.exists() and not path.is_dir():
        if path.suffix.lower() not in KINDS:
            raise DataError(f"{path}: not a table; {_GIVE}")
        return None, settings
    files = aligned_files(path)
    languages = languages_of(files)
    names = data.source_column or config.source, data.target_column or config.target
    if languages and None in names:
        raise ConfigError(_direction(str(path), languages))
    tables = {} if None in names else aligned_tables(files, [str(name) for name in names])
    if not tables:
        if languages:
            unknown = next((name for name in names if name not in languages), names[0])
            raise DataError(
                f"{path}: no files that end in .{names[0]} and .{names[1]}{did_you_mean(str(unknown), languages)}; "
                f"available: {', '.join(languages)}"
            )
        if not path.is_dir() or not tables_in(path):
            what = "no pair of files" if path.is_dir() else "no such file, folder or prefix of two files"
            raise DataError(f"{path}: {what}; {_GIVE}")
        return None, settings
    if len(tables) == 1:  # whatever it is called
        return {"pairs": next(iter(tables.values()))}, settings
    settings = with_usual_splits(list(tables), settings)
    tests = [stem for stem in tables if usual_name(stem, TEST_NAMES)]
    if len(tests) > 1 and settings.test_split is None and not {*TEST_NAMES} & {*tests} and settings.folds is None:
        notes.append(
            f"None of {', '.join(tests)} is used; choose a test split with --set task.data.test_split={tests[0]}."
        )
    if not settings.train_split and not {*TRAIN_NAMES} & {stem.lower() for stem in tables}:
        raise no_training_files(path, list(tables), [str(name) for name in names])
    return tables, settings


def _direction(where: str, names: Sequence[str]) -> str:
    first, second = sorted(names, key=lambda name: name != "en")[:2]
    remedy = f"use --set task.source={first} --set task.target={second}"
    remedy += ", or the other way around" if len(names) == 2 else f", or other two of {', '.join(names)}"
    return f"task.source and task.target: the languages to translate from and to must be set; {where}: {remedy}"


def _columns(table: LabelTable, config: TranslationConfig) -> tuple[str, str]:
    """Return the columns of source and target sentences."""
    found = []
    for side, usual in SIDES.items():
        column, language = getattr(config.data, f"{side}_column"), getattr(config, side)
        if column is not None:
            table.column(column, field=f"{side}_column")
        else:
            names = usual if language is None else (language.lower(), *usual)
            column = find_column(table, names)
        if column is None:
            split = find_column(table, SPLIT_NAMES)
            rest = [name for name in table.columns if name != split]
            if language is None and len(rest) == 2:
                raise ConfigError(_direction(table.where, rest))
            raise DataError(
                f"{table.where}: cannot find the column of {side} sentences (looked for {', '.join(names)}); name it with "
                f"--set task.data.{side}_column=NAME; available: {', '.join(table.columns)}"
            )
        found.append(column)
    if found[0] == found[1]:
        raise ConfigError(f"task.data.target_column: {found[0]!r} is also the source column; name another one")
    return found[0], found[1]


def _expanded(table: LabelTable) -> LabelTable:
    """Return the table with a column per language instead of the column of objects `NESTED`, if it has one."""
    rows = table.columns.get(NESTED)
    if rows is None or not all(isinstance(row, Mapping) for row in rows):
        return table
    sentences = FieldColumns(table.where)
    for row, number in zip(rows, table.numbers, strict=True):
        sentences.add(row, number)
    columns = {name: entries for name, entries in table.columns.items() if name != NESTED}
    return replace(table, columns=columns | sentences.columns())


def _pairs(table: LabelTable, columns: tuple[str, str], notes: list[str]) -> tuple[Pairs, np.ndarray]:
    """Return the pairs without empty sentences, and their rows."""
    if table.note and table.note not in notes:
        notes.append(table.note)
    sources, targets = (_sentences(table, name) for name in columns)
    rows = np.array([row for row in range(len(table)) if sources[row] and targets[row]], dtype=np.int64)
    if empty := sorted({*range(len(table))} - set(rows.tolist())):
        lines = shortened((f"row {n}" if isinstance(n := table.numbers[row], int) else n for row in empty), _SHOWN)
        what = "pair with an empty sentence is" if len(empty) == 1 else "pairs with an empty sentence are"
        notes.append(f"{len(empty)} {what} not used ({table.where}: {lines}).")
    sources, targets = [sources[row] for row in rows], [targets[row] for row in rows]
    same = sum(source == target for source, target in zip(sources, targets, strict=True))
    if same > _SAME * len(rows):
        notes.append(
            f"{same} of {len(rows)} pairs have the same sentence in {' and '.join(columns)}; check the languages."
        )
    names = text_names([f"{source}\n{target}" for source, target in zip(sources, targets, strict=True)])
    places = [table.line(row) for row in rows]
    return Pairs(names=names, sources=sources, targets=targets, places=places), rows


def _sentences(table: LabelTable, name: str) -> list[str]:
    found = list[str]()
    for row, entry in enumerate(plain_entries(table, name)):
        try:
            found.append(clean(entry))
        except DataError as error:
            raise DataError(f"{table.line(row)}, {name}: {error}") from None
    return found


def clean(entry: Any) -> str:
    """Return a sentence in Unicode normal form C, without spaces at its ends; empty for a missing entry.

    Raises:
        DataError: it, or a word in it, is too long.
    """
    text = "" if entry is None else str(entry)
    for what, length, most in (("sentence", len(text), LONGEST), ("word", _longest_word(text), LONGEST_WORD)):
        if length > most:
            raise DataError(f"a {what} has {length:,} characters, more than {most:,}; divide or remove it")
    return unicodedata.normalize("NFC", text).strip()


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0) if len(text) > LONGEST_WORD else 0


def _short(pairs: Pairs, words: int | None, notes: list[str]) -> Pairs:
    if words is None:
        return pairs
    short = [
        max(len(source.split()), len(target.split())) <= words
        for source, target in zip(pairs.sources, pairs.targets, strict=True)
    ]
    if len(pairs) and not any(short):
        raise ConfigError(f"task.data.max_length: every training pair has more than {words} words; use a larger number")
    if dropped := short.count(False):
        what = f"{dropped} training pair{'' if dropped == 1 else 's'} of more than {words} words"
        notes.append(f"{what} {'is' if dropped == 1 else 'are'} not used (task.data.max_length).")
    return pairs.take(np.flatnonzero(short))


def _test(
    path: Path,
    config: TranslationConfig,
    found: SplitTable,
    tables: Mapping[str, Callable[[], LabelTable]] | None,
    notes: list[str],
) -> Pairs | None:
    split = found.test_split
    if split is None:
        if config.data.test_split not in (None, "none"):
            raise DataError(
                f"{path}: no split {config.data.test_split!r} (task.data.test_split) besides training and validation; "
                "correct the name, or remove it"
            )
        return None
    if config.data.folds is not None:
        notes.append(f"The test split {split} is not used: folds divide training and validation pairs only.")
        return None
    rows = np.flatnonzero(found.side == 2)
    if len(rows):
        table = found.table.take(rows)
    else:
        table = tables[split]() if tables is not None else read_table(tables_in(path)[split])
    table = _expanded(table)
    pairs, _ = _pairs(table, _columns(table, config), notes)
    if not len(pairs):
        raise DataError(f"{table.where}: no pairs for test; add some, or use --set task.data.test_split=none")
    return pairs
