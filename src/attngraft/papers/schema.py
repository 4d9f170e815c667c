"""What a paper's file holds: its tables as printed, and how each number is made. Read strictly: a misspelt key is an error.

A number is written as the paper prints it, in quotes, so that its digits are known ("46.70", not 46.7).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from attngraft.errors import ConfigError, UsageError
from attngraft.strict import FieldError, read
from attngraft.suggest import did_you_mean

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table. With neither `count` nor `metric` its numbers are shown as printed and nothing more."""

    id: str
    title: str
    count: str | None = None  #: which of the counter's numbers stands here
    metric: str | None = None  #: which metric of a run stands here ("val/top1")
    percent: bool = False  #: the paper prints percent of what a run's metric says as a share

    def __post_init__(self) -> None:
        if self.count is not None and self.metric is not None:
            raise FieldError("metric", "a column is counted or measured, not both; drop count or metric")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: the variant as the paper calls it, the model that it is here, and the printed cells."""

    variant: str
    printed: Mapping[str, Any]  #: column id -> number as printed, a text
    model: str | None = None  #: name for `attngraft.create_model`; the table's if not given
    args: Mapping[str, Any] = field(default_factory=dict)  #: arguments of the model's factory
    input: tuple[int, ...] = (3, 224, 224)  #: size of one example
    graft: str | None = None  #: graft specification
    missing: str | None = None  #: what must be built before this row can be computed, as long as it cannot
    errata: Mapping[str, str] = field(default_factory=dict)  #: column id -> why the printed number does not come out
    note: str | None = None  #: how the row was read, where the paper leaves a choice

    def __post_init__(self) -> None:
        for column, number in self.printed.items():
            if not isinstance(number, str):
                raise FieldError(f"printed.{column}", f"quote the number {number!r}, so that its digits are known")


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of a paper."""

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    model: str | None = None  #: of the rows that name none and miss nothing
    counter: str | None = None  #: overrides the paper's
    distilled: bool | None = None  #: whether runs that fill its cells must have had a teacher, or none; null: either
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = [column.id for column in self.columns]
        _refuse_twice("columns", known)
        computed = any(column.count or column.metric for column in self.columns)
        for index, row in enumerate(self.rows):
            if computed and self.model_of(row) is None and row.missing is None:
                raise FieldError(f"rows[{index}]", "name the model, or say under `missing` what has to be built first")
            for section in ("printed", "errata"):
                for name in getattr(row, section):
                    if name not in known:
                        hint = did_you_mean(name, known)
                        raise FieldError(
                            f"rows[{index}].{section}", f"no column {name!r}{hint}; there are {', '.join(known)}"
                        )

    def model_of(self, row: Row) -> str | None:
        """The name of the row's model; None where nothing here is that model yet."""
        return row.model or (None if row.missing else self.model)

    def labels(self) -> list[str]:
        """The rows' variants, those that begin with "+" behind the host that stands above them ("ViT-S + CB")."""
        found, host = [], ""
        for row in self.rows:
            added = row.variant.startswith("+")
            host = host if added else row.variant
            found.append(f"{host} {row.variant}" if added else row.variant)
        return found


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper: where it is from, which counter its numbers were made with, and its tables."""

    id: str
    title: str
    source: str  #: authors, venue, year
    counter: str
    counting: str  #: one paragraph: what the paper's M and G are
    tables: tuple[Table, ...]
    aliases: Mapping[str, list[str]] = field(default_factory=dict)  #: model -> names of the same architecture
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise FieldError("format", f"{self.format} is not {FORMAT}; update attngraft")
        _refuse_twice("tables", [table.id for table in self.tables])

    def table(self, name: str) -> Table:
        """The table called `name` ("table6", "Table 6" and "6" are the same).

        Raises:
            UsageError: no such table; lists those there are.
        """
        wanted = name.lower().replace(" ", "")
        for table in self.tables:
            if wanted in (table.id.lower(), table.id.lower().removeprefix("table")):
                return table
        known = [table.id for table in self.tables]
        raise UsageError(f"{self.id} has no {name!r}{did_you_mean(wanted, known)}; there are {', '.join(known)}")


def read_paper(path: Path) -> Paper:
    """Read a paper's file.

    Raises:
        ConfigError: not YAML, an unknown or missing key, a number without quotes; names the file and the field.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    return read(Paper, content, where=path.name)


def _refuse_twice(name: str, ids: Iterable[str]) -> None:
    seen = set()
    for one in ids:
        if one in seen:
            raise FieldError(name, f"the id {one!r} stands twice")
        seen.add(one)
