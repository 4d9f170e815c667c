"""Comparison of a paper's table with our numbers.

Each row's model is built without weights, and counted by the paper's rules.

A cell agrees if our number, rounded to the printed digits, equals the printed number. A cell that differs or cannot be
computed has a reason.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from statistics import fmean
from typing import Any, Literal

import timm
import torch
from torch import nn

from attngraft.errors import ConfigError, HostError
from attngraft.models.create import create_model
from attngraft.models.dense import FixedWork, detector, segmenter
from attngraft.models.host_input import other_input
from attngraft.papers.counters import COUNTERS, Inputs
from attngraft.papers.runs import Run, matching
from attngraft.papers.schema import Paper, PaperColumn, PaperRow, PaperTable
from attngraft.suggest import did_you_mean
from attngraft.tensors import meta_device

Verdict = Literal["agrees", "differs", "not computed", "from runs", "printed", "not printed"]

NOT_PRINTED = "-"  #: in the papers' files, for numbers that are ours alone


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell: the printed number, our number, and their comparison."""

    verdict: Verdict
    printed: str
    ours: float | None = None
    why: str | None = None  #: reason why `ours` differs or is not computed
    runs: int = 0  #: number of runs that `ours` is averaged over


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """A row, with a cell for each column id for which the paper prints a number."""

    label: str  #: the variant with its host's name ("ViT-S + CB")
    row: PaperRow
    cells: Mapping[str, Cell]


@dataclass(frozen=True, kw_only=True)
class TableResult:
    """A computed table."""

    paper: str
    table: PaperTable
    rows: Sequence[RowResult]
    data: Sequence[str] = ()  #: data sets of its runs
    unmatched: Sequence[str] = ()  #: folders of runs that match no row

    def count(self, verdict: Verdict) -> int:
        """Return the number of cells with this verdict."""
        return sum(cell.verdict == verdict for row in self.rows for cell in row.cells.values())

    @property
    def summary(self) -> str:
        """Return one line with the numbers of cells that agree, differ, are not computed, or come from runs."""
        agree, differ, missing = (self.count(verdict) for verdict in ("agrees", "differs", "not computed"))
        line = f"{agree} {'cell agrees' if agree == 1 else 'cells agree'}, {differ} differ, {missing} not computed"
        runs = self.count("from runs")
        unprinted = self.count("not printed")
        if agree + differ + missing + runs + unprinted == 0:
            return "all numbers are the paper's; none of this table can be computed"
        line += f", {unprinted} not printed in the paper" if unprinted else ""
        return f"{line}, {runs} from runs" if runs else line

    def to_dict(self) -> dict[str, Any]:
        """Return the table as JSON values."""
        return {
            "paper": self.paper,
            "table": self.table.id,
            "title": self.table.title,
            "columns": [dataclasses.asdict(column) for column in self.table.columns],
            "rows": [
                {
                    "variant": result.label,
                    "model": self.table.model_of(result.row),
                    "args": dict(result.row.args),
                    "graft": result.row.graft,
                    "note": result.row.note,
                    "cells": {column: dataclasses.asdict(cell) for column, cell in result.cells.items()},
                }
                for result in self.rows
            ],
            "notes": list(self.table.notes),
            "data": list(self.data),
            "unmatched_runs": list(self.unmatched),
            "agree": self.count("agrees"),
            "differ": self.count("differs"),
            "not_computed": self.count("not computed"),
        }


def compute_table(paper: Paper, table: PaperTable, *, runs: Iterable[Run] = ()) -> TableResult:
    """Compute our numbers for every row of `table`, on the meta device: no weights, no downloads.

    Args:
        runs: finished runs (`attngraft.papers.runs.find_runs`); a row's metrics come from the runs with its model and graft.

    Raises:
        ConfigError: the paper's file names an unknown counter, or a number that its counter does not return.
    """
    runs = list(runs)
    used: list[Run] = []
    results = []
    for row, label in zip(table.rows, table.labels(), strict=True):
        matched = matching(runs, table, row, paper.aliases)
        used += matched
        results.append(RowResult(label=label, row=row, cells=_cells(paper, table, row, matched)))
    return TableResult(
        paper=paper.id,
        table=table,
        rows=results,
        data=sorted({run.data for run in used}),
        unmatched=[run.folder for run in runs if run not in used],
    )


def rounds_to(printed: str, ours: float) -> bool | None:
    """Return whether `ours` rounds (half up) to `printed`; None if `printed` is not a number."""
    try:
        number = Decimal(printed)
    except InvalidOperation:
        return None
    return Decimal(repr(float(ours))).quantize(number, rounding=ROUND_HALF_UP) == number


def _cells(paper: Paper, table: PaperTable, row: PaperRow, runs: Sequence[Run]) -> dict[str, Cell]:
    counts: Mapping[str, float] | None = None
    missing: str | None = None
    if any(column.count and column.id in row.printed for column in table.columns):
        name = table.counter or paper.counter
        if name not in COUNTERS:
            raise ConfigError(f"{paper.id}: unknown counter {name!r}; counters: {', '.join(COUNTERS)}")
        try:
            counts = COUNTERS[name](*_build(table, row))
            if row.minus is not None:
                less = COUNTERS[name](*_build(table, replace(row, model=row.minus)))
                counts = {what: value - less[what] for what, value in counts.items()}
        except HostError as error:
            missing = f"not available: {row.missing}" if row.missing else f"cannot be built: {error}"
    return {
        column.id: _counted(column, row, counts, missing) if column.count else _measured(column, row, runs)
        for column in table.columns
        if column.id in row.printed
    }


def _counted(column: PaperColumn, row: PaperRow, counts: Mapping[str, float] | None, missing: str | None) -> Cell:
    printed, what = row.printed[column.id], column.count or ""
    if counts is None:
        return Cell(verdict="not computed", printed=printed, why=missing)
    if what not in counts:
        hint = did_you_mean(what, counts)
        raise ConfigError(f"column {column.id}: unknown count {what!r}{hint}; its counter returns {', '.join(counts)}")
    ours = counts[what]
    if printed == NOT_PRINTED:
        return Cell(verdict="not printed", printed=printed, ours=ours)
    if rounds_to(printed, ours):
        return Cell(verdict="agrees", printed=printed, ours=ours)
    return Cell(verdict="differs", printed=printed, ours=ours, why=row.errata.get(column.id, "no reason is known"))


def _measured(column: PaperColumn, row: PaperRow, runs: Sequence[Run]) -> Cell:
    printed = row.printed[column.id]
    values = [run.metrics[column.metric] for run in runs if column.metric and column.metric in run.metrics]
    if not values:
        return Cell(verdict="printed", printed=printed)
    ours = fmean(values) * (100 if column.percent else 1)
    return Cell(verdict="from runs", printed=printed, ours=ours, runs=len(values))


def _build(table: PaperTable, row: PaperRow) -> tuple[nn.Module, Inputs]:
    """Build the row's model and the inputs of one example on the meta device.

    Raises:
        HostError: the model is unknown, or cannot be built or grafted.
    """
    name = table.model_of(row)
    if name is None or not timm.is_model(name):
        raise HostError(f"there is no model {name!r}")
    with meta_device():
        model = create_model(name, graft=row.graft, **row.args).eval()
        if row.segmenter:
            return segmenter(model, **row.segmenter).eval(), (torch.empty(1, *row.input),)
        if row.detector:
            return FixedWork(detector(model, **row.detector)).eval(), (torch.empty(1, *row.input),)
        other = other_input(model)
        if other is None:
            return model, (torch.empty(1, *row.input),)
        if other["kind"] == "points":
            category = () if other["labels"] == "clouds" else (torch.zeros(1, dtype=torch.int64),)
            return model, (torch.empty(1, *row.input), *category)
        sentence = torch.zeros(1, *row.input, dtype=torch.int64)
        return model, (sentence, None, sentence)
