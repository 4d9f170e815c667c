"""How models learned: loss and the metric that they are compared by, epoch by epoch (CB, Fig. 9; HV, Figs. 2 and 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from attngraft.analysis.ask import Analysis, Ask
from attngraft.analysis.asked.layers import table_of
from attngraft.analysis.subjects import Subject
from attngraft.finding import Curves, Finding, Line
from attngraft.training.build import build_task
from attngraft.training.run_folder import RunRecord


def find(ask: Ask) -> Finding:
    names = [subject.name for subject in ask.subjects]
    records = [_record(subject) for subject in ask.subjects]
    task = build_task(records[0].recipe)
    wanted = list(dict.fromkeys((f"val/{task.primary}", "val/loss", "train/loss", "val/top5")))
    shown = [key for key in wanted if any(key in row for record in records for row in record.epochs)]
    labels = {f"val/{name}": metric.label for name, metric in task.metrics.items()}
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note="After each epoch, on the validation part; the training loss is the mean over the epoch, with "
        "augmentation, so that it lies above the validation loss. One run of each model: for the spread over "
        "seeds see a study's report.",
        subjects=names,
        panels=[
            Curves(
                title=_title(key, labels),
                x_axis="epoch",
                lines=[_line(name, place, records[place], key) for place, name in enumerate(names)],
            )
            for key in shown
        ],
        table=table_of(
            ["model", "epoch", *shown],
            1,
            [
                [name, int(row["epoch"]), *(_number(row.get(key)) for key in shown)]
                for name, record in zip(names, records, strict=True)
                for row in record.epochs
            ],
        ),
    )


def _record(subject: Subject) -> RunRecord:
    if subject.record is None:
        raise TypeError(f"{subject.name} is no run")  # the analysis asks for runs
    return subject.record


def _title(key: str, labels: Mapping[str, str]) -> str:
    part, _, name = key.partition("/")
    return f"{labels.get(key, name)}, {'training' if part == 'train' else 'validation'}"


def _line(name: str, place: int, record: RunRecord, key: str) -> Line:
    rows = record.epochs
    return Line(
        name=name, subject=place, x=[float(row["epoch"]) for row in rows], y=[_number(row.get(key)) for row in rows]
    )


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


ANALYSIS = Analysis(
    name="curves",
    title="How they learned",
    what="accuracy and loss by epoch, of runs",
    source="CB, Fig. 9; HV, Figs. 2 and 3",
    find=find,
    images="none",
    runs=True,
)
