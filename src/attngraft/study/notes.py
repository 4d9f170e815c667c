"""Notes on a study's result: facts about the runs that matter when interpreting the numbers."""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from attngraft.results.study import RunSummary
from attngraft.results.wording import listed, recipe_text
from attngraft.study.config import StudyConfig
from attngraft.study.folds import each_fold
from attngraft.study.plan import Records
from attngraft.study.predictions import RunStatistics
from attngraft.tasks.task import Task
from attngraft.training.run_folder import RunRecord, validation_metrics
from attngraft.training.sizes import cut_note

_TRAINED = {
    "grafts+head": "Only the grafts and the head are trained: the baseline trains its head alone.",
    "head": "Only the head is trained: a graft's own parameters keep their initial values.",
}


def start_notes(config: StudyConfig, records: Records, metric: str) -> list[str]:
    """Return notes on a shortened schedule, initial weights, scores before training, teachers, and trained parameters.

    `other_host_notes` covers the initial weights of other hosts.
    """
    every = _all_runs(records)
    shortened = config.schedule_note() if every[0].recipe.schedule.warmup_epochs is None else None
    own = {variant.name: records[variant.name] for variant in config.variants if variant.host is None}
    notes = [shortened] if shortened else []
    origins = sorted({record.start["from"] for record in _all_runs(own) if record.start})
    if origins:
        notes.append(f"The host starts from {' or '.join(origins)}.")
    if not _same_weights(_all_runs(own)):
        notes.append(
            "The runs do not all start from the same weights (the file was changed in between), which may cause part of a "
            "difference."
        )
    same_distill = all(record.recipe.distill == every[0].recipe.distill for record in every)
    teachers = {record.teacher["sha256"]: record.teacher for record in every if record.teacher}
    for teacher in teachers.values():
        scores = [f"{name} {value:.4g}" for name, value in list(teacher.get("metrics", {}).items())[:1]]
        known = "; ".join([teacher["from"], *scores])
        who = "The runs learn" if same_distill else "Runs with distill in their recipe learn"
        notes.append(f"{who} from a teacher in addition to the labels: {teacher['name']} ({known}).")
    if same_distill and (len(teachers) > 1 or (teachers and not all(record.teacher for record in every))):
        notes.append(
            "The runs do not all have the same teacher (its weights were changed in between), which may cause part of a "
            "difference."
        )
    before = []
    for name, by_seed in own.items():
        at_start = [run.start.get("metrics", {}) for run in each_fold(by_seed.values())]
        values = [metrics[f"val/{metric}"] for metrics in at_start if f"val/{metric}" in metrics]
        if values:
            before.append(f"{fmean(values):.4g} ({name})")
    if before:
        notes.append(
            f"Before training, {metric} is {', '.join(before)}; differences from the plain host are due to the grafts alone."
        )
    parameters = {record.recipe.train.parameters for record in every}
    if len(parameters) == 1 and (trained := _TRAINED.get(parameters.pop())):
        notes.append(trained)
    return notes


def judged_notes(records: Records, metric: str) -> list[str]:
    """Return notes on the compared weights and split if they differ from the defaults."""
    judged = [(record.recipe.train.judge, record.judged) for record in _all_runs(records)]
    weights = {each for each, _ in judged}
    splits = {"val" if each is None else each.split for _, each in judged}
    notes = []
    if len(weights) > 1 or len(splits) > 1:
        notes.append(
            "The runs are not all evaluated with the same weights (train.judge) and on the same split, which may cause part "
            "of a difference."
        )
    if "best" in weights and "val" in splits:
        notes.append(
            f"The weights are those of each run's best epoch by {metric}, chosen and evaluated on the same validation "
            "examples, so the numbers are slightly optimistic."
        )
    elif "best" in weights:
        notes.append(f"The weights are those of each run's best epoch by {metric} on the validation split.")
    elif "val" in splits and any(s.patience is not None for run in _all_runs(records) for s in run.recipe.stages):
        notes.append(
            "Patience ended stages by validation, and runs are evaluated on the same examples, so the numbers are "
            "slightly optimistic."
        )
    if "test" in splits:
        notes.append(
            "Runs are evaluated on the test split, which was not used for any choice; curves are of the validation split."
        )
    return notes


def fold_notes(config: StudyConfig) -> list[str]:
    """Return a note on what cross-validation changes."""
    if config.folds is None:
        return []
    return [
        f"Cross-validation with {config.folds} folds: every example is evaluated once per seed, by the run that was not "
        "trained on it. Curves are means over folds. Intervals are widened because the folds' training sets overlap."
    ]


def _all_runs(records: Mapping[str, Mapping[int, RunRecord]]) -> list[RunRecord]:
    return each_fold(record for by_seed in records.values() for record in by_seed.values())


def _same_weights(runs: Iterable[RunRecord]) -> bool:
    """Return whether all runs (of one host) start from the same weights file, or all without one."""
    return len({(run.start.get("from") is not None, run.start.get("sha256")) for run in runs}) <= 1


def other_host_notes(config: StudyConfig, records: Records) -> list[str]:
    """Return notes on variants whose host differs from the study's host."""
    names = [variant.name for variant in config.variants if variant.host is not None]
    if not names:
        return []
    changed = any(variant.overrides for variant in config.variants if variant.host is not None)
    except_for = " (except for the fields stated beside each)" if changed else ""
    models = "is a different model from the baseline" if len(names) == 1 else "are different models from the baseline"
    notes = [
        f"{listed(names)} {models}: same data, order, augmentation and recipe{except_for}, but different initial values. "
        "One recipe does not suit all models alike."
    ]
    for name in names:
        origins = sorted({record.start["from"] for record in records[name].values() if record.start})
        notes += [f"{name} starts from {' or '.join(origins)}."] if origins else []
        if not _same_weights(records[name].values()):
            notes.append(
                f"The runs of {name} do not all start from the same weights (the file was changed in between), which may "
                "cause part of its difference."
            )
    parameters = {record.recipe.train.parameters for name in names for record in records[name].values()}
    ungrafted = [variant.name for variant in config.variants if variant.name in names and variant.spec == "none"]
    if parameters == {"grafts+head"} and ungrafted:
        notes.append(f"Like the baseline, {listed(ungrafted)} train{'s' * (len(ungrafted) == 1)} the head alone.")
    base = _input_config(records[config.baseline.name])
    different = []
    for name in names:
        own = _input_config(records[name])
        if base and own and (fields := [key.replace("_", " ") for key in own if own[key] != base.get(key)]):
            different.append(f"{name} ({', '.join(fields)})")
    if different:
        notes.append(f"Inputs are prepared differently from the baseline's for {'; '.join(different)}.")
    return notes


def other_recipe_notes(config: StudyConfig, changed: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return notes on variants that change the study's recipe.

    Args:
        config: the study.
        changed: for each variant's name, the fields that differ from the study's recipe.
    """
    notes = []
    plain = {v.name: changed[v.name] for v in config.variants if v.spec == "none" and v.host is None}
    for variant in config.variants:
        own = changed[variant.name]
        if not own:
            continue
        text = f"{variant.name} was trained under another recipe than the baseline: {recipe_text(own)}."
        same = next((name for name, fields in plain.items() if fields == own), None)
        if same is None:
            text += (
                " Its difference is due to model and recipe together; to tell them apart, add the plain host under that "
                f"recipe, {{set: [{recipe_text(own)}]}}."
            )
        elif same != variant.name:
            text += f" {same} is the plain host under that recipe."
        if "train.batch_size" in own:
            text += " Its training time is that of a step with its own batch size."
        notes.append(text)
    return notes


def _input_config(by_seed: Mapping[int, RunRecord]) -> dict[str, Any]:
    record = next(iter(by_seed.values()), None)
    return {} if record is None else dict(record.facts.get("input", {}))


def run_notes(
    config: StudyConfig,
    records: Records,
    runs: Mapping[str, Sequence[RunSummary]],
    metric: str,
    *,
    statistics: Mapping[str, Mapping[int, RunStatistics]],
    stopped: Collection[str],
) -> list[str]:
    """Return notes on missing runs, and on differences between runs in environment, data and batches."""
    every, notes = _all_runs(records), []
    if len(config.seeds) == 1:
        notes.append("One seed: the noise between seeds is unknown, so nothing is called better or worse.")
    for variant in config.variants:
        missing = [seed for seed in config.seeds if seed not in records[variant.name]]
        if missing and variant.name not in stopped:
            seeds = ", ".join(map(str, missing))
            what = "no finished run" if config.folds is None else f"unfinished folds (of {config.folds})"
            notes.append(f"{variant.name}: {what} of seed {seeds}; its numbers are of the other seeds.")
    for name in ("device_name", "threads", "packages"):
        if len({json.dumps(run.environment.get(name), sort_keys=True) for run in every}) > 1:
            notes.append(f"The runs differ in their environment ({name}), which may cause part of a difference.")
    trained = [run.facts.get("check") or {} for by_seed in records.values() for run in by_seed.values()]
    if len({check.get("train_digest") for check in trained}) > 1:
        notes.append("The runs were trained on different examples: the data changed during the study.")
    stops = {
        name: sorted({int(run.epochs[-1]["step"]) for run in by_seed.values() if "step" in run.epochs[-1]})
        for name, by_seed in records.items()
    }
    if len({update for updates in stops.values() for update in updates}) > 1:
        each = [f"{name} {' and '.join(map(str, updates))}" for name, updates in stops.items() if updates]
        notes.append(f"Runs stopped after different numbers of updates: {'; '.join(each)}.")
    own_cuts = {variant.name for variant in config.variants if variant.sets("train.accumulate")}
    shared = _all_runs({name: by_seed for name, by_seed in records.items() if name not in own_cuts})
    cuts = sorted({run.recipe.train.accumulate for run in shared})
    if len(cuts) > 1:
        notes.append(
            "After out-of-memory errors, some runs split their batches into more micro-batches than others "
            f"(train.accumulate {', '.join(map(str, cuts))}). Their updates use the same examples, but dropout "
            "masks, and batch norm statistics if the host has any, differ, as they belong to a micro-batch."
        )
    notes += sorted({cut_note(run.cut) for run in every if run.recipe.schedule.trains} - {""})
    seen = sorted({run.environment.get("batch_norm_examples", 0) for run in every} - {0})
    if seen:
        notes.append(
            f"Batch norm computes mean and variance over {' or '.join(map(str, seen))} examples at a time, not over all "
            "examples of an update (train.accumulate, or several processes)."
        )
    for variant in config.variants:
        for run in runs[variant.name]:
            statistic = statistics[variant.name][run.seed].statistics.get(metric)
            score = run.last[metric] if statistic is None else statistic.point
            if not math.isclose(score, run.last[metric], rel_tol=1e-5, abs_tol=1e-6):
                notes.append(
                    f"{run.folder}: {metric} is {score:.6g} in the saved predictions and {run.last[metric]:.6g} in the "
                    "run's metrics; differences are computed from the predictions."
                )
    return notes


def training_notes(records: Records, task: Task) -> list[str]:
    """Return a note on each variant with runs that have not learned, by `Task.training_note`."""
    notes = []
    for name, by_seed in records.items():
        found = {
            seed: note
            for seed, record in by_seed.items()
            for run in each_fold([record])
            if (note := task.training_note(validation_metrics(run.epochs[-1]), run.facts))
        }
        if found:
            seeds = f"seed{'s' * (len(found) > 1)} {', '.join(map(str, found))}"
            notes.append(f"{name}, {seeds}: {next(iter(found.values()))}.")
    return notes
