"""How models learned: loss and the metric that they are compared by, epoch by epoch (CB, Fig. 9; HV, Figs. 2 and 3), and
how soon they are as good as the baseline ever was (BiSA, Fig. 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attngraft.analysis.ask import Analysis, Ask
from attngraft.analysis.asked.layers import table_of
from attngraft.results.analysis import Curves, Finding, Line
from attngraft.results.epochs import epochs_to_baseline
from attngraft.targets.handle import ModelHandle
from attngraft.training.build import build_task
from attngraft.training.run_folder import RunRecord

_REACHED = "epochs to baseline's best"


@dataclass(frozen=True, kw_only=True)
class _Learned:
    """As `epochs_to_baseline` takes a run."""

    seed: int
    curve: Mapping[str, Sequence[float]]


def find(ask: Ask) -> Finding:
    names = [subject.name for subject in ask.subjects]
    records = [_record(subject) for subject in ask.subjects]
    task = build_task(records[0].recipe)
    wanted = list(dict.fromkeys((f"val/{task.primary}", "val/loss", "train/loss", "val/top5")))
    shown = [key for key in wanted if any(key in row for record in records for row in record.epochs)]
    baseline = 0 if ask.baseline is None else ask.baseline
    reached = [
        _reached(record, records[baseline], key=wanted[0], higher_is_better=task.higher_is_better) for record in records
    ]
    labels = {f"val/{name}": metric.label for name, metric in task.metrics.items()}
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note="After each epoch, on the validation part; the training loss is the mean over the epoch, with "
        "augmentation, so that it lies above the validation loss. One run of each model: for the spread over "
        "seeds see a study's report. Epochs to the baseline's best: the first epoch after which a model's "
        f"{labels.get(wanted[0], task.primary)} is at least as good as the best that {names[baseline]} ever has; empty "
        "where it never is.",
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
            ["model", "epoch", *shown, _REACHED],
            1,
            [
                [name, int(row["epoch"]), *(_number(row.get(key)) for key in shown), epoch]
                for name, record, epoch in zip(names, records, reached, strict=True)
                for row in record.epochs
            ],
        ),
        numbers={
            f"{name}: epochs to the best of {names[baseline]}": float(epoch)
            for name, epoch in zip(names, reached, strict=True)
            if epoch is not None
        },
    )


def _reached(record: RunRecord, baseline: RunRecord, *, key: str, higher_is_better: bool) -> int | None:
    """The first epoch (1-based) at which a run is as good as the baseline's best; None: never."""
    found = epochs_to_baseline(
        [_learned(record, key)], [_learned(baseline, key)], key=key, higher_is_better=higher_is_better
    )
    return None if found is None else found.of_mean_curve


def _learned(record: RunRecord, key: str) -> _Learned:
    return _Learned(seed=record.recipe.seed, curve={key: [row.get(key, math.nan) for row in record.epochs]})


def _record(subject: ModelHandle) -> RunRecord:
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
    what="accuracy and loss by epoch, of runs, and when each is as good as the baseline's best",
    source="CB, Fig. 9; HV, Figs. 2 and 3; BiSA, Fig. 3",
    find=find,
    images="none",
    runs=True,
)
