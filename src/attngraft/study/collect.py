"""Collection of a study's result from its run folders."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from attngraft._version import __version__
from attngraft.errors import FolderError, TrainingError
from attngraft.results.halving import halving_notes, halving_outcome
from attngraft.results.measured import Statistic
from attngraft.results.outlook import judged
from attngraft.results.statistics import RESAMPLES, epochs_to_baseline
from attngraft.results.study import Cost, Curve, Difference, RunSummary, Spread, StudyResult, VariantResult
from attngraft.results.wording import image_size, model_text, plural
from attngraft.study.config import StudyConfig
from attngraft.study.decisions import Outcomes, until_notes, until_outcomes
from attngraft.study.folds import FoldedRecord, compared_metrics
from attngraft.study.notes import (
    fold_notes,
    judged_notes,
    other_host_notes,
    other_recipe_notes,
    run_notes,
    start_notes,
    training_notes,
)
from attngraft.study.plan import finished_runs
from attngraft.study.predictions import (
    RunStatistics,
    chance_of,
    paired,
    part_differences,
    read_statistics_of,
    relative_change,
    variant_sections,
)
from attngraft.study.suites import suite_notes, suite_results
from attngraft.study.variants import Variant
from attngraft.study.verdict import compare_all, corrected, spread
from attngraft.tasks.task import Task
from attngraft.training.build import task_of
from attngraft.training.recipe import changed_settings, recipe_to_dict
from attngraft.training.run_folder import RunRecord, validation_metrics
from attngraft.yaml_config import parse_yaml

_AS_IS = (
    "Nothing was trained (--epochs 0): each variant is its host with its weights and new grafts, evaluated once per seed. "
    "Grafts that are not the identity at initialization change the host's predictions even without training."
)


def collect(config: StudyConfig, *, costs: Mapping[str, Cost] | None = None, notes: Sequence[str] = ()) -> StudyResult:
    """Return the result of the study's finished runs.

    Args:
        config: the study.
        costs: costs for each `Variant.key`; None if nothing was measured.
        notes: additional notes (why a run failed, ...).

    Raises:
        FolderError: no run is finished yet.
        TrainingError: a run folder is damaged.
        DataError: runs were evaluated on different examples.
    """
    records = finished_runs(config)
    # prefer a run with the study's host and recipe
    order = sorted(config.variants, key=lambda variant: (variant.host is not None, bool(variant.overrides)))
    first = next((record for variant in order for record in records[variant.name].values()), None)
    if first is None:
        raise FolderError(
            f"{config.out}: no run is finished, so there is nothing to report; rerun without --report-only"
        )
    task, recipe = task_of(first), recipe_to_dict(first.recipe)
    if config.folds is not None:  # the recipe of all folds
        recipe["task"] = {**recipe["task"], "data": {**recipe["task"]["data"], "fold": None}}
    unfinished = [name for name, of_variant in records.items() if len(of_variant) < len(config.seeds)]
    halving = halving_outcome(config.out, unfinished)
    stopped = [name for name in ({} if halving is None else halving.stopped) if not records[name]]
    statistics = read_statistics_of(records, task)
    until = None if config.until is None else until_outcomes(config, config.until, task, statistics)
    if until is not None:  # runs that no decision is based on
        statistics = until.of_decisions(statistics)
        records = until.of_decisions(records)
    runs = {
        name: [_summary(record, seed, task, config, statistics[name][seed]) for seed, record in of_variant.items()]
        for name, of_variant in records.items()
    }
    differences, not_compared = _differences(config, task, statistics, stopped=len(stopped))
    judged_split: Literal["val", "test"] = "val" if first.judged is None else first.judged.split
    counted = any(run.recipe.counts_updates for of_variant in records.values() for run in of_variant.values())
    baseline_runs, key = runs[config.baseline.name], f"val/{task.primary}"
    settings = {
        variant.name: _changed_settings(variant, list(records[variant.name].values()), first)
        for variant in config.variants
    }
    sections = {name: variant_sections(task, list(of_variant.values())) for name, of_variant in records.items()}
    pairs = {name: paired(statistics[config.baseline.name], runs) for name, runs in statistics.items()}
    variants = [
        VariantResult(
            name=variant.name,
            spec=variant.spec,
            host=None if variant.host is None else variant.host.plain(),
            recipe=settings[variant.name],
            is_baseline=variant.is_baseline,
            runs=runs[variant.name],
            last=_spreads([run.last for run in runs[variant.name]]),
            best=_spreads([run.best for run in runs[variant.name]]),
            cost=(costs or {}).get(variant.key),
            difference=_decided(by_metric.get(task.primary), variant, until),
            other_differences={name: each for name, each in by_metric.items() if name != task.primary},
            epochs_to_baseline=None
            if counted or not first.recipe.schedule.trains or task.primary in reasons
            else epochs_to_baseline(runs[variant.name], baseline_runs, key=key, higher_is_better=task.higher_is_better),
            not_compared=reasons.get(task.primary, ""),
            sections=sections[variant.name],
            part_differences=part_differences(sections[variant.name], *pairs[variant.name], folds=config.folds)
            if by_metric
            else {},
            relative_change=None
            if task.primary not in by_metric
            else relative_change(*pairs[variant.name], metric=task.primary),
        )
        for variant, by_metric, reasons in zip(config.variants, differences, not_compared, strict=True)
    ]
    result = StudyResult(
        judged_weights=first.recipe.train.judge,
        judged_split=judged_split,
        light_curves=task.has_light_inference,
        title=config.title or _title(config, first, (costs or {}).get(config.baseline.key)),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        command=config.command or f"attngraft compare --study {config.out / 'study.yaml'}",
        task=task.name,
        metric=task.primary,
        metrics=dict(task.metrics),
        higher_is_better=task.higher_is_better,
        host=recipe["host"],
        data=dict(first.facts),
        recipe={name: value for name, value in recipe.items() if name not in ("graft", "seed")},
        environment=dict(first.environment),
        seeds=list(config.seeds if until is None else until.seeds[config.baseline.name]),
        folds=config.folds,
        epochs=first.recipe.schedule.epochs if first.recipe.schedule.steps is None else first.epochs_done,
        steps=first.recipe.schedule.steps,
        variants=variants,
        notes=[
            *([] if halving is None else halving_notes(halving, judged_split=judged_split)),
            *([] if until is None else until_notes(until.result, baseline=config.baseline.name)),
            *([] if first.recipe.schedule.trains else [_AS_IS]),
            *first.facts.get("notes", []),
            *fold_notes(config),
            *judged_notes(records, task.primary),
            *start_notes(config, records, task.primary),
            *other_host_notes(config, records),
            *other_recipe_notes(config, settings),
            *run_notes(config, records, runs, task.primary, statistics=statistics, stopped=stopped),
            *training_notes(records, task),
            *([] if costs is not None else ["Costs were not measured."]),
            *suite_notes(config),
            *(reason for reasons in not_compared for reason in reasons.values()),
            *_resample_notes(differences),
            *notes,
        ],
        halving=halving,
        until=None if until is None else until.result,
        suites=suite_results(config, records, task) if config.suites else [],
        chance=chance_of(first, task),
    )
    return judged(result)


def _decided(difference: Difference | None, variant: Variant, until: Outcomes | None) -> Difference | None:
    return difference if difference is None or until is None else until.difference(variant.name, difference)


def _changed_settings(variant: Variant, records: Sequence[RunRecord], first: RunRecord) -> dict[str, Any]:
    """Return the recipe fields that the variant changes, from its first run or, without runs, its `set`."""
    if records:
        found = changed_settings(records[0].recipe, first.recipe)
        same = {name for name, path in records[0].paths.items() if first.paths.get(name) == path}
        return {name: value for name, value in found.items() if name not in same}
    return {name: parse_yaml(text, source=name) for name, _, text in (o.partition("=") for o in variant.overrides)}


def _summary(record: RunRecord, seed: int, task: Task, config: StudyConfig, statistics: RunStatistics) -> RunSummary:
    rows, key = record.epochs, f"val/{task.primary}"
    if key not in rows[-1]:
        raise TrainingError(f"{record.folder}: its metrics do not contain {key}; delete this run to train it again")
    values = [row.get(key, math.nan) for row in rows]
    signed = [-math.inf if math.isnan(v) else v if task.higher_is_better else -v for v in values]
    best = signed.index(max(signed))
    names = [name for name in rows[0] if "/" in name and all(name in row for row in rows)]
    curve: Curve = {"epoch": [float(row["epoch"]) for row in rows]}
    if all("step" in row for row in rows):
        curve["step"] = [float(row["step"]) for row in rows]
    curve |= {name: [float(row[name]) for row in rows] for name in names}
    folded = isinstance(record, FoldedRecord)
    folder = record.folder.parent if folded else record.folder
    return RunSummary(
        seed=seed,
        folder=folder.relative_to(config.out).as_posix(),
        last=compared_metrics(record) | (dict(statistics.metrics) if folded else {}),
        best=validation_metrics(rows[best]),
        best_epoch=int(rows[best]["epoch"]),
        curve=curve,
        seconds=record.seconds,
    )


def _spreads(metrics: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Return mean and sample deviation over seeds for every metric that all runs have."""
    names = [name for name in metrics[0] if all(name in each for each in metrics)] if metrics else []
    return {name: spread(np.array([each[name] for each in metrics])) for name in names}


def _differences(
    config: StudyConfig, task: Task, statistics: Mapping[str, Mapping[int, RunStatistics]], *, stopped: int
) -> tuple[list[dict[str, Difference]], list[dict[str, str]]]:
    """Return each variant's differences and, for missing differences, the reasons, by metric.

    Both are empty for the baseline and for variants without a common seed. Holm's correction is applied per metric over all
    variants, including `stopped` variants that were stopped early.
    """
    found: list[dict[str, Difference]] = [{} for _ in config.variants]
    missing: list[dict[str, str]] = [{} for _ in config.variants]
    pairs = [paired(statistics[config.baseline.name], statistics[variant.name]) for variant in config.variants]
    metrics = (name for before, _ in pairs for run in before.values() for name in run.statistics)
    for metric in dict.fromkeys([task.primary, *metrics]):
        compared: dict[int, tuple[dict[int, Statistic], dict[int, Statistic]]] = {}
        for index, (variant, (before, after)) in enumerate(zip(config.variants, pairs, strict=True)):
            runs = [*before.values(), *after.values()]
            if variant.is_baseline or not runs or any(metric not in run.statistics for run in runs):
                continue
            units = list(dict.fromkeys(run.comparable.get(metric, "") for run in runs))
            if len(units) > 1:
                which = f" ({units[-1]}, not {units[0]})" if all(units) else ""
                missing[index][metric] = (
                    f"{metric} of {variant.name} is measured in other units than the baseline's{which}; it is not compared."
                )
                continue
            compared[index] = (
                {seed: run.statistics[metric] for seed, run in before.items()},
                {seed: run.statistics[metric] for seed, run in after.items()},
            )
        share = metric in task.metrics and task.metrics[metric].share
        differences = compare_all(
            list(compared.values()),
            higher_is_better=task.is_higher_better(metric),
            point=0.01 if share else None,
            folds=config.folds,
        )
        for (index, (baseline, _)), difference in zip(compared.items(), differences, strict=True):
            if difference is None:
                name = config.variants[index].name
                missing[index][metric] = (
                    f"{metric} of {name} or of the baseline is undefined for a seed; it is not compared."
                )
            else:
                found[index][metric] = replace(difference, held_fixed=next(iter(baseline.values())).held_fixed)
        fixed = corrected([each.get(metric) for each in found], untested=stopped)
        for each, difference in zip(found, fixed, strict=True):
            if difference is not None:
                each[metric] = difference
    return found, missing


def _resample_notes(differences: Sequence[Mapping[str, Difference]]) -> list[str]:
    """Return notes on metrics with fewer than `RESAMPLES` resamples."""
    notes = []
    for metric in dict.fromkeys(name for each in differences for name in each):
        resamples = min(each[metric].resamples for each in differences if metric in each)
        if resamples < RESAMPLES:
            notes.append(
                f"The bootstrap intervals of {metric} are from {resamples:,} resamples, not {RESAMPLES:,}, which would take "
                "over a minute per variant."
            )
    return notes


def _title(config: StudyConfig, record: RunRecord, cost: Cost | None) -> str:
    source = record.facts.get("source") or record.recipe.task.get("data", {}).get("source", "the data")
    others = sum(variant.host is not None for variant in config.variants)
    recipes = sum(variant.host is None and variant.spec == "none" for variant in config.variants) - 1
    grafts = len(config.variants) - 1 - others - recipes
    parts = [plural(grafts, "graft")] if grafts or not (others or recipes) else []
    parts += [plural(count, f"other {kind}") for count, kind in ((others, "host"), (recipes, "recipe")) if count]
    host = {"name": record.recipe.host.name, "args": record.recipe.host.args}
    model = model_text(host, parameters=cost.parameters if cost else None, input_size=image_size(record.facts))
    return f"{model} on {source}: {', '.join(parts)}"
