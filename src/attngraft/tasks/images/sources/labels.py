"""Labels of a table's rows: a single one, a list, or a column of 0 and 1 per class."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.listing import natural
from attngraft.tasks.images.sources.table import MISSING, LabelTable

SINGLE = ("label", "class", "class_name", "category", "target", "y", "class_index", "class_id", "label_id", "species")
LISTS = ("labels", "classes", "categories", "tags", "targets")  #: columns that may hold lists
SEPARATORS = {"bar": "|", "semicolon": ";", "comma": ",", "space": " "}  #: in order of detection

_YES, _NO = frozenset({"1", "1.0", "true", "yes"}), frozenset({"0", "0.0", "-1", "-1.0", "false", "no"})


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Labels of all rows: (N,) int64, or (N, K) uint8 if `multilabel`."""

    classes: tuple[str, ...]
    values: np.ndarray
    multilabel: bool
    note: str = ""  #: how they were read, for the report


def find_column(table: LabelTable, names: Sequence[str], *, exclude: Collection[str] = ()) -> str | None:
    """Return the column with the first of these names, in any case."""
    lowered = {name.lower().replace(" ", "_"): name for name in reversed(table.columns) if name not in exclude}
    return next((lowered[name] for name in names if name in lowered), None)


def read_labels(table: LabelTable, config: DataConfig, *, exclude: set[str]) -> Labels:
    """Read the labels of `table`; the columns `exclude` hold something else.

    Raises:
        DataError: no column of labels is found; a row without its single label.
        ConfigError: an unknown column.
    """
    if config.label_columns is not None:
        values = np.zeros((len(table), len(config.label_columns)), dtype=np.uint8)
        for column, name in enumerate(config.label_columns):
            for row, entry in enumerate(table.column(name, field="label_columns")):
                text = _word(entry).lower()
                if text not in _YES and text not in _NO and text not in MISSING:
                    raise DataError(f"{table.line(row)}: column {name!r} holds {text!r}; label_columns hold 0 or 1")
                values[row, column] = text in _YES
        return Labels(classes=tuple(config.label_columns), values=values, multilabel=True)
    name = config.label_column or _label_column(table, exclude)
    entries = table.column(name, field="label_column")
    lists = _as_lists(table, name, entries, config)
    if lists is None:
        only_choice = config.label_column is not None or len(table.columns) <= len(exclude) + 1
        return _single(table, name, entries, note="" if only_choice else f"Labels are read from column {name!r}.")
    rows, note = lists
    classes = tuple(sorted({label for labels in rows for label in labels}, key=natural))
    number = {label: i for i, label in enumerate(classes)}
    values = np.zeros((len(rows), len(classes)), dtype=np.uint8)
    for row, labels in enumerate(rows):
        for label in labels:
            values[row, number[label]] = 1
    return Labels(classes=classes, values=values, multilabel=True, note=note)


def _label_column(table: LabelTable, exclude: set[str]) -> str:
    name = find_column(table, (*SINGLE, *LISTS), exclude=exclude)
    if name is not None:
        return name
    rest = [name for name in table.columns if name not in exclude]
    if len(rest) == 1:
        return rest[0]
    raise DataError(
        f"{table.where}: cannot find the column of labels (looked for {', '.join((*SINGLE[:3], LISTS[0]))}, ...); name it "
        f"with task.data.label_column, or one column of 0 and 1 per class with task.data.label_columns; available: "
        f"{', '.join(table.columns)}"
    )


def _single(table: LabelTable, name: str, entries: Sequence[Any], *, note: str) -> Labels:
    labels = []
    for row, entry in enumerate(entries):
        text = _word(entry)
        if text.lower() in MISSING:
            raise DataError(f"{table.line(row)}: column {name!r} holds no label; add one or remove the row")
        labels.append(text)
    classes = tuple(sorted(set(labels), key=natural))
    number = {label: i for i, label in enumerate(classes)}
    values = np.array([number[label] for label in labels], dtype=np.int64)
    return Labels(classes=classes, values=values, multilabel=False, note=note)


def _word(entry: Any) -> str:
    if entry is None:
        return ""
    if isinstance(entry, float) and entry.is_integer():
        return str(int(entry))
    return str(entry).strip()


def _as_lists(
    table: LabelTable, name: str, entries: Sequence[Any], config: DataConfig
) -> tuple[list[list[str]], str] | None:
    """Return each row's labels and a note on how they were read; None if rows have one label."""
    if config.label_separator == "none":
        return None
    if any(isinstance(entry, list) for entry in entries):
        return [[_word(label) for label in entry or []] for entry in entries], f"Column {name!r} holds lists of labels."
    texts = [_word(entry) for entry in entries]
    if config.label_separator is not None:
        separator: str | None = SEPARATORS[config.label_separator]
    else:
        brackets = [text.startswith("[") and text.endswith("]") for text in texts if text.lower() not in MISSING]
        if brackets and all(brackets):
            rows = [_json_list(table, row, name, text) for row, text in enumerate(texts)]
            return rows, f"Column {name!r} holds JSON lists of labels."
        marks = SEPARATORS.values() if name.lower() in LISTS else ()
        separator = next((mark for mark in marks if any(mark in text for text in texts)), None)
    if separator is None:
        return None
    rows = [
        [label.strip() for label in text.split(separator) if label.strip()] if text.lower() not in MISSING else []
        for text in texts
    ]
    note = f"Labels in column {name!r} are separated by {separator!r}"
    return rows, f"{note} (change it with task.data.label_separator)." if config.label_separator is None else f"{note}."


def _json_list(table: LabelTable, row: int, name: str, text: str) -> list[str]:
    if text.lower() in MISSING:
        return []
    try:
        labels = json.loads(text)
    except json.JSONDecodeError:
        try:
            labels = json.loads(text.replace("'", '"'))  # as Python prints a list
        except json.JSONDecodeError as error:
            raise DataError(
                f"{table.line(row)}: column {name!r} does not hold a JSON list of labels ({error}): {text[:60]}"
            ) from None
    return [_word(label) for label in labels]
