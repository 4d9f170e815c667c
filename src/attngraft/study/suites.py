"""A study's finished runs under suites, and what the suites say of its variants.

Every run is evaluated with the weights of its last epoch, as it is compared; what is done already is not done again. Where a
condition has several noise seeds, an example's score is first averaged over them, so that noise seeds are no more examples.
Severities are averaged in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attngraft.errors import DataError
from attngraft.evaluation.suites.cache import read_cached, read_columns, read_fingerprint, require_pyarrow
from attngraft.evaluation.suites.catalog import SuiteChoice, parse_suites
from attngraft.evaluation.suites.evaluate import FOLDER, checkpoint_digest, evaluate_suites
from attngraft.evaluation.suites.progress import SuiteProgress
from attngraft.evaluation.suites.result import FAILURES, GroupResult, SuiteRun, find_suite_run
from attngraft.results.study import ConditionResult, ConditionVariant, Difference, Spread, SuiteResult
from attngraft.study.calibrating import Beliefs, compare_calibration
from attngraft.study.config import StudyConfig
from attngraft.study.pairing import Scores, aligned
from attngraft.study.progress import StudyProgress
from attngraft.study.verdict import compare_scores
from attngraft.targets.test_sets import imagenet_order, open_test_set
from attngraft.tasks.images.sources import is_missing
from attngraft.training.evaluate import Weights, weights_file

if TYPE_CHECKING:
    from attngraft.study.collect import Records
    from attngraft.tasks.task import Task
    from attngraft.training.profiler import BenchmarkBatch
    from attngraft.training.run_folder import RunRecord

WEIGHTS: Weights = "last"


def check_suites(config: StudyConfig, benchmark: BenchmarkBatch | None) -> None:
    """Find out before anything is trained whether the suites can be evaluated.

    Raises:
        DataError: images must be downloaded, are not there or not laid out as they should be, or are of other classes.
        ConfigError: the task does not support suites that change images.
        TrainingError: pyarrow is not installed.
    """
    from attngraft.evaluation.suites.context import missing_images

    if choices_of(config):
        require_pyarrow()
    for choice in choices_of(config):
        if choice.data is not None and is_missing(choice.data):
            raise DataError(
                f"suite {choice.text}: {choice.data}: there is no such folder or file; give that of the images"
            )
        if choice.suite.test_set:
            if choice.data is None:
                raise missing_images(choice.suite.test_set)
            open_test_set(choice.suite.test_set, Path(choice.data))
            if benchmark is not None:
                imagenet_order(list(benchmark.data.facts.get("classes", ())), run=config.out)
    if benchmark is not None and config.suites:
        benchmark.task.suite_support()


def choices_of(config: StudyConfig) -> tuple[SuiteChoice, ...]:
    """The study's suites, but for `throughput`: costs are measured side by side in any study (`suite_notes`).

    Raises:
        UsageError: there is no such suite.
    """
    return tuple(choice for choice in parse_suites(config.suites) if choice.suite.kind != "throughput")


def suite_notes(config: StudyConfig) -> list[str]:
    """What a reader must know of suites that were asked for."""
    timed = any(choice.suite.kind == "throughput" for choice in parse_suites(config.suites))
    where = "Costs: time and memory are measured side by side there, with the interval of each time ratio"
    return [f"Suite throughput: see {where}."] if timed else []


def evaluate_finished(config: StudyConfig, *, progress: StudyProgress) -> list[str]:
    """Evaluate every finished run under the study's suites, as far as that is not done; what failed, in words.

    Raises:
        KeyboardInterrupt: the study was stopped; the same command goes on.
    """
    from attngraft.study.collect import finished_runs

    choices, failed = choices_of(config), []
    for name, by_seed in finished_runs(config).items():
        for seed, record in by_seed.items():
            label = f"{name} seed {seed}"
            for choice in choices:  # each by itself: what fails under one says nothing of the others
                try:
                    evaluate_suites(record.folder, [choice], weights="last", progress=_Stages(label, progress))
                except FAILURES as error:
                    failed.append(f"{label}: its evaluation under suite {choice.text} failed: {error}")
    return failed


class _Stages(SuiteProgress):
    """Tells a study how a run's evaluation gets on."""

    def __init__(self, label: str, progress: StudyProgress) -> None:
        self._label, self._progress, self._suite, self._told = label, progress, "", ""

    def on_suite(self, title: str, *, conditions: int, done: int, examples: int) -> None:
        self._suite = title

    def on_condition(self, label: str) -> None:
        text = f"{self._label}: {self._suite}: {label}"
        if text != self._told:  # of several noise seeds the first
            self._told = text
            self._progress.on_stage(text)


def suite_results(config: StudyConfig, records: Records, task: Task) -> list[SuiteResult]:
    """What the study's suites say, from the files of its finished runs; suites that no run was evaluated under are left
    out.

    Raises:
        DataError: runs were evaluated on different examples.
        TrainingError: a file of predictions cannot be read.
    """
    found = []
    checkpoints: dict[Path, str] = {}
    for choice in choices_of(config):
        there = {
            (name, seed): _Evaluated(record, found_run)
            for name, by_seed in records.items()
            for seed, record in by_seed.items()
            if (found_run := find_suite_run(record.folder / FOLDER / WEIGHTS, choice)) is not None
        }
        if not there:
            continue
        first, notes = next(iter(there.values())).found, []
        for (name, seed), why in _stale(there, checkpoints).items():
            del there[name, seed]
            notes.append(f"{name} seed {seed} is left out: {why}; the command without --report-only evaluates it.")
        runs = {name: {seed: run for (of, seed), run in there.items() if of == name} for name in records}
        found.append(_suite(config, choice, runs, next((run.found for run in there.values()), first), task, notes))
    return found


def _stale(there: Mapping[tuple[str, int], _Evaluated], checkpoints: dict[Path, str]) -> dict[tuple[str, int], str]:
    """Those whose results are not of what the others' are, and why. `checkpoints` keeps digests of the runs' weights.

    What cannot be known is taken at its word: weights that are gone, and results of a time when they did not tell which
    examples they are of.
    """
    digests = [run.found.digest for run in there.values() if run.found.digest]
    digest = max(digests, key=digests.count, default="")  # what most of them saw
    found = {}
    for key, run in there.items():
        folder = run.record.folder
        if folder not in checkpoints:
            there_are = weights_file(folder, WEIGHTS).is_file()
            checkpoints[folder] = checkpoint_digest(run.record, WEIGHTS) if there_are else run.found.checkpoint
        if run.found.checkpoint != checkpoints[folder]:
            found[key] = "what is kept is of other weights than the run has now"
        elif run.found.digest and run.found.digest != digest:
            found[key] = "it was evaluated on other examples than most runs"
        elif run.found.digest and not run.whole():
            found[key] = "its files of predictions are not those that its results were made from"
    return found


class _Evaluated:
    """A run under a suite; files are read once."""

    def __init__(self, record: RunRecord, found: SuiteRun) -> None:
        self.record, self.found = record, found
        self.groups = {group.name: group for group in found.groups}
        self._read: dict[str, Scores] = {}

    def whole(self) -> bool:
        """Whether all files of predictions are there, and of the weights and examples of the results."""
        files = (self.record.folder / FOLDER / file for group in self.found.groups for file in group.files)
        made = (read_fingerprint(file) for file in files)
        return all(
            each is not None and (each["checkpoint"], each["data"]) == (self.found.checkpoint, self.found.digest)
            for each in made
        )

    def scores(self, name: str) -> Scores:
        """By example: the mean over severities of the mean over noise seeds."""
        own = self.groups[name]
        if own.files:
            return self._mean(own)
        members = [each for each in self.found.groups if each.severity is not None and own.kind in (each.kind, "mean")]
        each = [self._mean(member) for member in members if member.files]
        return Scores(names=each[0].names, score=np.mean([scores.score for scores in each], axis=0), binary=False)

    def _mean(self, group: GroupResult) -> Scores:
        if group.name not in self._read:
            self._read[group.name] = self._of_files(group)
        return self._read[group.name]

    def _of_files(self, group: GroupResult) -> Scores:
        paths = [self.record.folder / FOLDER / file for file in group.files]
        columns = [read_columns(path, only=("name", "score")) for path in paths]
        kept = read_cached(paths[0])
        names = columns[0]["name"]
        before = next((scores.names for scores in self._read.values()), names)
        return Scores(
            names=before if np.array_equal(before, names) else names,  # not held once more for every condition
            score=np.mean([each["score"].astype(float) for each in columns], axis=0),
            binary=len(paths) == 1 and kept is not None and kept.binary,
        )


_Runs = Mapping[str, Mapping[int, _Evaluated]]


def _suite(
    config: StudyConfig, choice: SuiteChoice, runs: _Runs, first: SuiteRun, task: Task, said: list[str]
) -> SuiteResult:
    notes = [*first.notes, *said]
    seeds = max((len(group.noise_seeds) for group in first.groups), default=0)
    if seeds > 1:
        notes.append(f"Where there is noise, an example's score is its mean over {seeds} noise seeds.")
    for name, by_seed in runs.items():
        ways = dict.fromkeys(text for run in by_seed.values() for group in run.found.groups for text in group.said)
        notes += [f"{name}: {text}." for text in ways]
    return SuiteResult(
        name=choice.suite.name,
        title=choice.suite.title,
        data=first.data,
        metric=first.metric,
        higher_is_better=first.higher_is_better,
        examples=first.examples,
        conditions=[_condition(config, group, runs, first, task) for group in first.groups],
        notes=notes,
    )


def _condition(config: StudyConfig, group: GroupResult, runs: _Runs, first: SuiteRun, task: Task) -> ConditionResult:
    baseline = _with_numbers(runs[config.baseline.name], group.name)
    variants = []
    for variant in config.variants:
        own = _with_numbers(runs[variant.name], group.name)
        values = np.array([run.groups[group.name].metrics[first.metric].mean for run in own.values()])
        spread = None
        if len(values):
            spread = Spread(mean=float(values.mean()), deviation=float(values.std(ddof=1)) if len(values) > 1 else None)
        every = [run.groups[group.name] for run in runs[variant.name].values() if group.name in run.groups]
        variants.append(
            ConditionVariant(
                value=spread,
                difference=None if variant.is_baseline else _difference(baseline, own, group.name, first, task),
                reason=next((each.reason for each in every if each.reason), ""),
            )
        )
    return ConditionResult(
        name=group.name,
        label=group.label,
        kind=group.kind,
        severity=group.severity,
        noise_seeds=len(group.noise_seeds),
        variants=variants,
    )


def _with_numbers(by_seed: Mapping[int, _Evaluated], name: str) -> dict[int, _Evaluated]:
    return {seed: run for seed, run in by_seed.items() if name in run.groups and run.groups[name].metrics}


def _difference(
    baseline: Mapping[int, _Evaluated], variant: Mapping[int, _Evaluated], name: str, first: SuiteRun, task: Task
) -> Difference | None:
    seeds = sorted(baseline.keys() & variant.keys())
    if not seeds:
        return None
    pairs = [*(baseline[seed] for seed in seeds), *(variant[seed] for seed in seeds)]
    if first.metric == "ece":
        beliefs = [_beliefs(run, name, task) for run in pairs]
        return compare_calibration(beliefs[: len(seeds)], beliefs[len(seeds) :])
    scores, binary = aligned([run.scores(name) for run in pairs], [str(run.record.folder) for run in pairs])
    return compare_scores(
        dict(zip(seeds, scores[: len(seeds)], strict=True)),
        dict(zip(seeds, scores[len(seeds) :], strict=True)),
        binary=binary,
        higher_is_better=first.higher_is_better,
    )


def _beliefs(run: _Evaluated, name: str, task: Task) -> Beliefs:
    columns = read_columns(run.record.folder / FOLDER / run.groups[name].files[0])
    stated, true = task.calibration_inputs(columns)
    return Beliefs(names=columns["name"], stated=stated, true=true)
