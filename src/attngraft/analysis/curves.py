"""Learning curves and epochs to the baseline's best value (CB, Fig. 9; HV, Figs. 2, 3; BiSA, Fig. 3)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attngraft.analysis.panels import table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content
from attngraft.results.analysis import Curves, Line
from attngraft.results.statistics import epochs_to_baseline
from attngraft.training.build import task_of
from attngraft.training.run_folder import RunRecord


@dataclass(frozen=True, kw_only=True)
class _Curve:
    """Seed and curve of a run, in the form that `epochs_to_baseline` accepts."""

    seed: int
    curve: Mapping[str, Sequence[float]]


def run(request: AnalysisRequest) -> Content:
    runs = [(model.name, model.record) for model in request.models if model.record is not None]
    baseline, baseline_record = runs[request.baseline or 0]
    task = task_of(runs[0][1])
    primary = f"val/{task.primary}"
    keys = list(dict.fromkeys((primary, "val/loss", "train/loss", "val/top5")))
    shown = [key for key in keys if any(key in row for _, record in runs for row in record.epochs)]
    reached = []  # the first epoch (from 1) at which each run is as good as the baseline's best
    counted = any(record.recipe.counts_updates for _, record in runs)  # if so, rows are evaluations, not epochs
    for _, record in runs:
        found = epochs_to_baseline(
            [_curve(record, primary)],
            [_curve(baseline_record, primary)],
            key=primary,
            higher_is_better=task.higher_is_better,
        )
        reached.append(None if found is None or counted else found.of_mean_curve)
    labels = {f"val/{name}": metric.label for name, metric in task.metrics.items()}
    return Content(
        note="After each epoch, on the validation split. The training loss is the mean over the epoch, with augmentation, "
        "and so is higher than the validation loss. One run per model; for the spread over seeds see a study's report. "
        f"Epochs to the baseline's best: the first epoch after which a model's {labels.get(primary, task.primary)} is at "
        f"least as good as the best of {baseline}; empty if it never is.",
        panels=[
            Curves(
                title=_title(key, labels),
                x_axis="update" if counted else "epoch",
                lines=[
                    Line(
                        name=name,
                        subject=index,
                        x=[float(row.get("step", row["epoch"])) for row in record.epochs],
                        y=[_finite(row.get(key)) for row in record.epochs],
                    )
                    for index, (name, record) in enumerate(runs)
                ],
            )
            for key in shown
        ],
        table=table(
            ["model", "epoch", *shown, "epochs to baseline's best"],
            [
                [name, int(row["epoch"]), *(_finite(row.get(key)) for key in shown), epoch]
                for (name, record), epoch in zip(runs, reached, strict=True)
                for row in record.epochs
            ],
        ),
        numbers={
            f"{name}: epochs to the best of {baseline}": float(epoch)
            for (name, _), epoch in zip(runs, reached, strict=True)
            if epoch is not None
        },
    )


def _curve(record: RunRecord, key: str) -> _Curve:
    return _Curve(seed=record.recipe.seed, curve={key: [row.get(key, math.nan) for row in record.epochs]})


def _title(key: str, labels: Mapping[str, str]) -> str:
    part, _, name = key.partition("/")
    return f"{labels.get(key, name)}, {'training' if part == 'train' else 'validation'}"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


ANALYSIS = Analysis(
    name="curves",
    title="Learning curves",
    summary="accuracy and loss of runs by epoch, and the epoch at which each reaches the baseline's best",
    source="CB, Fig. 9; HV, Figs. 2 and 3; BiSA, Fig. 3",
    run=run,
    images="none",
    runs_only=True,
)
