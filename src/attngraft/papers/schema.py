"""Schema of the papers' files: the printed tables, and how each number is computed.

Each paper is a YAML file in this folder. Numbers are written as printed and in quotes, to preserve their digits ("46.70",
not 46.7). Unknown keys are errors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attngraft.errors import UsageError
from attngraft.strict import FieldError, read
from attngraft.suggest import did_you_mean
from attngraft.yaml_config import read_yaml

FORMAT = 1
_FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class PaperColumn:
    """One column of a table. Without `count` or `metric`, only the printed numbers are shown."""

    id: str
    title: str
    count: str | None = None  #: key in the counter's result
    metric: str | None = None  #: metric of a run ("val/top1") or of a suite (suite/condition/metric: "v2/v2/top1")
    percent: bool = False  #: whether the paper prints percent (metrics of runs are fractions)

    def __post_init__(self) -> None:
        if self.count is not None and self.metric is not None:
            raise FieldError("metric", "a column is either counted or measured; remove count or metric")


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """One row: the paper's name of the variant, our corresponding model, and the printed numbers."""

    variant: str
    printed: Mapping[str, Any]  #: column id -> number as printed, as text; "-" counts where the paper prints nothing
    model: str | None = None  #: name for `attngraft.create_model`; None: the table's model
    args: Mapping[str, Any] = field(default_factory=dict)  #: arguments of the model's factory
    #: size of one example: an image, [N] tokens of source and target, or [N, C] values of points
    input: tuple[int, ...] = (3, 224, 224)
    graft: str | None = None  #: graft specification
    #: arguments of `models.dense.segmenter`, for a segmentation model around the grafted model; empty: the model itself
    segmenter: Mapping[str, Any] = field(default_factory=dict)
    #: arguments of `models.dense.detector`, likewise, counted with 1,000 boxes and 100 masks per stage
    detector: Mapping[str, Any] = field(default_factory=dict)
    minus: str | None = None  #: model whose counts are subtracted, if the paper prints a difference
    missing: str | None = None  #: the task or model without which this row cannot be computed
    errata: Mapping[str, str] = field(default_factory=dict)  #: column id -> why our number differs
    note: str | None = None  #: our interpretation of the row, if the paper is ambiguous

    def __post_init__(self) -> None:
        for column, number in self.printed.items():
            if not isinstance(number, str):
                raise FieldError(f"printed.{column}", f"quote the number {number!r}, so that its digits are known")


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """One table of a paper."""

    id: str
    title: str
    columns: tuple[PaperColumn, ...]
    rows: tuple[PaperRow, ...]
    model: str | None = None  #: model for rows that set neither `model` nor `missing`
    counter: str | None = None  #: counter of this table; None: the paper's counter
    distilled: bool | None = None  #: whether to match only runs with a teacher (true) or without (false); null: both
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = [column.id for column in self.columns]
        _check_unique("columns", known)
        computed = any(column.count or column.metric for column in self.columns)
        for index, row in enumerate(self.rows):
            if computed and self.model_of(row) is None and row.missing is None:
                raise FieldError(f"rows[{index}]", "set its model, or `missing` to what must be implemented first")
            for section in ("printed", "errata"):
                for name in getattr(row, section):
                    if name not in known:
                        hint = did_you_mean(name, known)
                        raise FieldError(
                            f"rows[{index}].{section}", f"no column {name!r}{hint}; available: {', '.join(known)}"
                        )

    def model_of(self, row: PaperRow) -> str | None:
        """Return the name of the row's model; None if it is not implemented."""
        return row.model or (None if row.missing else self.model)

    def labels(self) -> list[str]:
        """Return the rows' variant names, with the host's name prepended to "+ CB" ("ViT-S + CB")."""
        found, host = [], ""
        for row in self.rows:
            added = row.variant.startswith("+")
            host = host if added else row.variant
            found.append(f"{host} {row.variant}" if added else row.variant)
        return found


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper: its source, the name of the function that counts its parameters and MACs, and its tables."""

    id: str
    title: str
    source: str  #: authors, venue, year
    counter: str
    counting: str  #: the paper's units and counting rules, in one paragraph
    tables: tuple[PaperTable, ...]
    aliases: Mapping[str, list[str]] = field(default_factory=dict)  #: model -> other names of the same architecture
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise FieldError("format", f"{self.format} is not supported, only {FORMAT}; update attngraft")
        _check_unique("tables", [table.id for table in self.tables])

    def table(self, name: str) -> PaperTable:
        """Return the table called `name` ("table6", "Table 6" and "6" are the same).

        Raises:
            UsageError: there is no such table; the message lists all tables.
        """
        wanted = name.lower().replace(" ", "")
        for table in self.tables:
            if wanted in (table.id.lower(), table.id.lower().removeprefix("table")):
                return table
        known = [table.id for table in self.tables]
        raise UsageError(f"{self.id} has no table {name!r}{did_you_mean(wanted, known)}; tables: {', '.join(known)}")


def list_papers() -> list[str]:
    """Return the ids of all papers, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load_paper(name: str) -> Paper:
    """Return the paper with the id `name`.

    Raises:
        UsageError: there is no such paper; the message lists all papers.
        ConfigError: its file is invalid; the message names the field.
    """
    known = list_papers()
    if name.lower() not in known:
        raise UsageError(f"there is no paper {name!r}{did_you_mean(name.lower(), known)}; papers: {', '.join(known)}")
    return read_paper(_FOLDER / f"{name.lower()}.yaml")


def read_paper(path: Path) -> Paper:
    """Read a paper's file.

    Raises:
        ConfigError: invalid YAML, an unknown or missing key, or a number without quotes; the message names file and field.
    """
    return read(Paper, read_yaml(path), where=path.name)


def _check_unique(name: str, ids: Sequence[str]) -> None:
    repeated = [each for index, each in enumerate(ids) if each in ids[:index]]
    if repeated:
        raise FieldError(name, f"the id {repeated[0]!r} occurs twice; rename one of them")
