"""From run folders to a `StudyResult`."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attngraft._version import __version__
from attngraft.errors import TrainingError
from attngraft.results.halving import halving_notes, halving_outcome
from attngraft.results.statistics import epochs_to_baseline
from attngraft.results.study import (
    Cost,
    Curve,
    Difference,
    EpochsToBaseline,
    RunSummary,
    Spread,
    StudyResult,
    SuiteResult,
    VariantResult,
)
from attngraft.study.against import other_host_notes
from attngraft.study.config import StudyConfig
from attngraft.study.pairing import aligned_scores, read_scores
from attngraft.study.schedule import run_folder
from attngraft.study.sections import variant_sections
from attngraft.study.starts import start_notes
from attngraft.study.variants import Variant
from attngraft.study.verdict import compare_scores, corrected

if TYPE_CHECKING:
    from attngraft.results.sections import Section
    from attngraft.tasks.task import Task
    from attngraft.training.run_folder import RunRecord

Records = dict[str, dict[int, "RunRecord"]]  #: finished runs, by variant name and seed


@dataclass(frozen=True, kw_only=True)
class _Metric:
    name: str
    higher_is_better: bool

    @property
    def key(self) -> str:
        return f"val/{self.name}"

    def best(self, values: Sequence[float]) -> int:
        """Index of the best value, the first of equal ones; what is not a number is never best."""
        worst = -math.inf
        signed = [worst if math.isnan(v) else v if self.higher_is_better else -v for v in values]
        return signed.index(max(signed))


def collect(config: StudyConfig, *, costs: Mapping[str, Cost] | None = None, notes: Sequence[str] = ()) -> StudyResult:
    """Everything that the study's finished runs say.

    Args:
        config: the study.
        costs: by `Variant.key`; None where nothing was measured.
        notes: what a reader must know besides what is seen here (why a run failed, ...).

    Raises:
        TrainingError: no run is finished yet, or a run folder is damaged.
        DataError: runs were evaluated on different examples.
    """
    from attngraft.training.build import build_task
    from attngraft.training.recipe import recipe_to_dict

    records = finished_runs(config)
    own = {variant.name: records[variant.name] for variant in config.variants if variant.host is None}
    first = next((record for by_seed in (own | records).values() for record in by_seed.values()), None)
    if first is None:
        raise TrainingError(f"{config.out}: no run of this study is finished yet, so there is nothing to report")
    task = build_task(first.recipe)
    metric = _Metric(name=task.primary, higher_is_better=task.higher_is_better)
    runs = {
        name: [_summary(record, seed, metric, config.out) for seed, record in by_seed.items()]
        for name, by_seed in records.items()
    }
    unfinished = [name for name, by_seed in records.items() if len(by_seed) < len(config.seeds)]
    halving = halving_outcome(config.out, unfinished)
    stopped = [name for name in ({} if halving is None else halving.stopped) if not records[name]]
    differences = _differences(config, records, metric, stopped=len(stopped))
    baseline_runs = runs[config.baseline.name]
    variants = [
        _variant(
            v,
            runs[v.name],
            (costs or {}).get(v.key),
            differences[v.name],
            epochs_to_baseline(runs[v.name], baseline_runs, key=metric.key, higher_is_better=metric.higher_is_better),
            variant_sections(task, list(records[v.name].values())),
        )
        for v in config.variants
    ]
    suites, said_of_suites = _suites(config, records, task)
    return StudyResult(
        title=config.title or _title(first, config.variants),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        command=config.command or f"attngraft compare --study {config.out / 'study.yaml'}",
        task=task.name,
        metric=metric.name,
        metrics=dict(task.metrics),
        higher_is_better=metric.higher_is_better,
        host=recipe_to_dict(first.recipe)["host"],
        data=dict(first.facts),
        recipe={k: v for k, v in recipe_to_dict(first.recipe).items() if k not in ("graft", "seed")},
        environment=dict(first.environment),
        seeds=list(config.seeds),
        epochs=first.recipe.schedule.epochs,
        variants=variants,
        notes=[
            *([] if halving is None else halving_notes(halving)),
            *first.facts.get("notes", []),
            *start_notes(records, metric.name, others=records.keys() - own.keys()),
            *other_host_notes(config, records),
            *_notes(config, records, runs, metric, measured=costs is not None, stopped=stopped),
            *said_of_suites,
            *notes,
        ],
        halving=halving,
        suites=suites,
    )


def _suites(config: StudyConfig, records: Records, task: Task) -> tuple[list[SuiteResult], list[str]]:
    """What suites found, and what must be known of them."""
    if not config.suites:
        return [], []
    from attngraft.study.suites import suite_notes, suite_results

    return suite_results(config, records, task), suite_notes(config)


def finished_runs(config: StudyConfig) -> Records:
    """The runs of the study that are complete.

    Raises:
        TrainingError: a run folder is damaged.
    """
    from attngraft.training.run_folder import read_run

    records: Records = {variant.name: {} for variant in config.variants}
    for variant in config.variants:
        for seed in config.seeds:
            folder = run_folder(config.out, variant, seed)
            if (folder / "recipe.yaml").is_file():
                record = read_run(folder)
                if record.finished and record.epochs:
                    records[variant.name][seed] = record
    return records


def _summary(record: RunRecord, seed: int, metric: _Metric, out: Path) -> RunSummary:
    rows = record.epochs
    if metric.key not in rows[-1]:
        raise TrainingError(f"{record.folder}: its metrics have no {metric.key}; delete this run and make it anew")
    best = metric.best([row.get(metric.key, math.nan) for row in rows])
    names = [name for name in rows[0] if "/" in name and all(name in row for row in rows)]
    curve: Curve = {"epoch": [float(row["epoch"]) for row in rows]}
    curve |= {name: [float(row[name]) for row in rows] for name in names}
    return RunSummary(
        seed=seed,
        folder=record.folder.relative_to(out).as_posix(),
        last=_validation(rows[-1]),
        best=_validation(rows[best]),
        best_epoch=int(rows[best]["epoch"]),
        curve=curve,
        seconds=record.seconds,
    )


def _validation(row: Mapping[str, float]) -> dict[str, float]:
    """What was measured on the validation part: `top1`, and `ema/top1` of the moving average."""
    return {name.removeprefix("val/"): float(row[name]) for name in row if name.startswith(("val/", "ema/"))}


def _variant(
    variant: Variant,
    runs: list[RunSummary],
    cost: Cost | None,
    difference: Difference | None,
    reached: EpochsToBaseline | None,
    sections: list[Section],
) -> VariantResult:
    return VariantResult(
        name=variant.name,
        spec=variant.spec,
        host=None if variant.host is None else variant.host.plain(),
        is_baseline=variant.is_baseline,
        runs=runs,
        last=_spreads([run.last for run in runs]),
        best=_spreads([run.best for run in runs]),
        cost=cost,
        difference=difference,
        epochs_to_baseline=reached,
        sections=sections,
    )


def _spreads(metrics: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Mean and sample deviation over seeds of every metric that all runs have."""
    names = [name for name in metrics[0] if all(name in each for each in metrics)] if metrics else []
    values = {name: np.array([each[name] for each in metrics]) for name in names}
    return {
        name: Spread(mean=float(v.mean()), deviation=float(v.std(ddof=1)) if len(v) > 1 else None)
        for name, v in values.items()
    }


def _differences(
    config: StudyConfig, records: Records, metric: _Metric, *, stopped: int
) -> dict[str, Difference | None]:
    """Per variant; None for the baseline, and where no seed has both runs. `stopped` variants did not come to the end."""
    baseline = records[config.baseline.name]
    found: list[Difference | None] = []
    for variant in config.variants:
        own = {seed: record for seed, record in records[variant.name].items() if seed in baseline}
        if variant.is_baseline or not own:
            found.append(None)
            continue
        scores, binary = aligned_scores([*(baseline[seed] for seed in own), *own.values()])
        found.append(
            compare_scores(
                dict(zip(own, scores[: len(own)], strict=True)),
                dict(zip(own, scores[len(own) :], strict=True)),
                binary=binary,
                higher_is_better=metric.higher_is_better,
            )
        )
    return dict(zip((variant.name for variant in config.variants), corrected(found, untested=stopped), strict=True))


def _title(record: RunRecord, variants: Sequence[Variant]) -> str:
    source = record.facts.get("source") or record.recipe.task.get("data", {}).get("source", "the data")
    others = sum(variant.host is not None for variant in variants)
    grafts = len(variants) - 1 - others
    parts = [f"{grafts} graft{'' if grafts == 1 else 's'}"] if grafts or not others else []
    parts += [f"{others} other host{'' if others == 1 else 's'}"] if others else []
    return f"{record.recipe.host.name} on {source}: {', '.join(parts)}"


def _notes(
    config: StudyConfig,
    records: Records,
    runs: Mapping[str, list[RunSummary]],
    metric: _Metric,
    *,
    measured: bool,
    stopped: Collection[str],
) -> list[str]:
    """What a reader must know to read the numbers rightly."""
    notes = []
    if len(config.seeds) == 1:
        notes.append("One seed: the noise between seeds is unknown, so nothing is called better or worse.")
    for variant in config.variants:
        missing = [seed for seed in config.seeds if seed not in records[variant.name]]
        if missing and variant.name not in stopped:
            seeds = ", ".join(map(str, missing))
            notes.append(f"{variant.name}: no finished run of seed {seeds}; its numbers are of the other seeds.")
    for name in ("device_name", "threads", "packages"):
        values = {json.dumps(r.environment.get(name), sort_keys=True) for by in records.values() for r in by.values()}
        if len(values) > 1:
            notes.append(f"The runs differ in their environment ({name}), so part of a difference may come from there.")
    if len({(r.facts.get("check") or {}).get("train_digest") for by in records.values() for r in by.values()}) > 1:
        notes.append("The runs were trained on different images: the data changed while the study was at work.")
    cuts = sorted({r.recipe.train.accumulate for by in records.values() for r in by.values()})
    if len(cuts) > 1:
        notes.append(
            f"For want of memory some runs cut their batches into more micro-batches than others (train.accumulate "
            f"{', '.join(map(str, cuts))}). Their updates see the same examples; dropout, and batch norms where the host "
            "has any, see other parts of them."
        )
    every = [record for by in records.values() for record in by.values()]
    seen = sorted({record.environment.get("batch_norm_examples", 0) for record in every} - {0})
    if seen:
        notes.append(
            f"Batch norms take mean and variance from {' or '.join(map(str, seen))} examples at a time, not from all of an "
            "update (train.accumulate, or several processes)."
        )
    for variant in config.variants:
        for run in runs[variant.name]:
            score = float(read_scores(records[variant.name][run.seed]).score.mean())
            if not math.isclose(score, run.last[metric.name], rel_tol=1e-5, abs_tol=1e-6):
                notes.append(
                    f"{run.folder}: the mean score of the predictions is {score:.6g}, {metric.name} is "
                    f"{run.last[metric.name]:.6g}; differences are of scores."
                )
    if not measured:
        notes.append("Costs were not measured.")
    return notes
