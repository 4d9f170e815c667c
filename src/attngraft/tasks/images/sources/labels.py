"""The labels of a table's rows: one for each, a list, or a column of 0 and 1 for each class."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.listing import natural
from attngraft.tasks.images.sources.table import MISSING, Table

ONE = ("label", "class", "class_name", "category", "target", "y", "class_index", "class_id", "label_id", "species")
SEVERAL = ("labels", "classes", "categories", "tags", "targets")  #: columns that may hold lists
SEPARATORS = {"bar": "|", "semicolon": ";", "comma": ",", "space": " "}  #: in the order in which they are looked for

_YES, _NO = frozenset({"1", "1.0", "true", "yes"}), frozenset({"0", "0.0", "-1", "-1.0", "false", "no"})


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Of all rows: (N,) int64, or (N, K) uint8 where `multilabel`."""

    classes: tuple[str, ...]
    values: np.ndarray
    multilabel: bool
    note: str = ""

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The labels of these rows."""
        return self.values[rows]


def read_labels(table: Table, config: DataConfig, *, but: set[str]) -> Labels:
    """The labels of `table`, whose columns `but` are something else.

    Raises:
        DataError: no column of labels that can be told; a row without a label, where it needs one.
        ConfigError: a column that is not there.
    """
    if config.label_columns is not None:
        return _from_columns(table, config.label_columns)
    name = config.label_column or _told(table, but)
    entries = table.column(name, field="label_column")
    lists = _as_lists(table, name, entries, config)
    if lists is None:
        note = (
            "" if config.label_column is not None or len(table.columns) <= len(but) + 1 else f"Labels are of {name!r}."
        )
        return _single(table, name, entries, note=note)
    values, note = lists
    classes = tuple(sorted({label for row in values for label in row}, key=natural))
    return Labels(classes=classes, values=_matrix(values, classes), multilabel=True, note=note)


def _told(table: Table, but: set[str]) -> str:
    lowered = {name.lower().replace(" ", "_"): name for name in reversed(table.columns) if name not in but}
    for name in (*ONE, *SEVERAL):
        if name in lowered:
            return lowered[name]
    rest = [name for name in table.columns if name not in but]
    if len(rest) == 1:
        return rest[0]
    raise DataError(
        f"{table.where}: which column holds the labels? none is called {', '.join((*ONE[:3], SEVERAL[0]))}; name it with "
        f"task.data.label_column, or a column of 0 and 1 for each class with task.data.label_columns; there are: "
        f"{', '.join(table.columns)}"
    )


def _single(table: Table, name: str, entries: Sequence[Any], *, note: str) -> Labels:
    labels = []
    for row, entry in enumerate(entries):
        text = _word(entry)
        if text.lower() in MISSING:
            raise DataError(f"{table.line(row)}: column {name!r} holds no label; give one or remove the row")
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
    table: Table, name: str, entries: Sequence[Any], config: DataConfig
) -> tuple[list[list[str]], str] | None:
    """Each row's labels, and how they were read; None where a row has one label."""
    if config.label_separator == "none":
        return None
    if any(isinstance(entry, list) for entry in entries):
        return [[_word(label) for label in entry or []] for entry in entries], f"Column {name!r} holds lists of labels."
    texts = [_word(entry) for entry in entries]
    if config.label_separator is not None:
        separator: str | None = SEPARATORS[config.label_separator]
    elif _is_json(texts):
        rows = [_json_list(table, row, name, text) for row, text in enumerate(texts)]
        return rows, f"Column {name!r} holds JSON lists of labels."
    else:
        marks = SEPARATORS.values() if name.lower() in SEVERAL else ()
        separator = next((mark for mark in marks if any(mark in text for text in texts)), None)
    if separator is None:
        return None
    rows = [
        [label.strip() for label in text.split(separator) if label.strip()] if text.lower() not in MISSING else []
        for text in texts
    ]
    note = f"Labels of column {name!r} are divided at {separator!r}"
    return rows, f"{note} (task.data.label_separator says otherwise)." if config.label_separator is None else f"{note}."


def _is_json(texts: Sequence[str]) -> bool:
    """Whether all entries look like lists (empty ones may be missing)."""
    lists = [text.startswith("[") and text.endswith("]") for text in texts if text.lower() not in MISSING]
    return bool(lists) and all(lists)


def _json_list(table: Table, row: int, name: str, text: str) -> list[str]:
    if text.lower() in MISSING:
        return []
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        try:
            found = json.loads(text.replace("'", '"'))  # as Python prints a list
        except json.JSONDecodeError as error:
            raise DataError(
                f"{table.line(row)}: column {name!r} is no JSON list of labels ({error}): {text[:60]}"
            ) from None
    return [_word(label) for label in found]


def _from_columns(table: Table, names: Sequence[str]) -> Labels:
    values = np.zeros((len(table), len(names)), dtype=np.uint8)
    for place, name in enumerate(names):
        for row, entry in enumerate(table.column(name, field="label_columns")):
            text = _word(entry).lower()
            if text not in _YES and text not in _NO and text not in MISSING:
                raise DataError(f"{table.line(row)}: column {name!r} holds {text!r}; label_columns hold 0 or 1")
            values[row, place] = text in _YES
    return Labels(classes=tuple(names), values=values, multilabel=True)


def _matrix(rows: Sequence[Sequence[str]], classes: tuple[str, ...]) -> np.ndarray:
    number = {label: i for i, label in enumerate(classes)}
    values = np.zeros((len(rows), len(classes)), dtype=np.uint8)
    for row, labels in enumerate(rows):
        for label in labels:
            values[row, number[label]] = 1
    return values
