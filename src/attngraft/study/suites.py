"""Evaluation of a study's finished runs under suites, and comparison of its variants.

Every run is evaluated with the weights that the study compares (`train.judge`); existing evaluations are reused. If a
condition has several noise seeds, each example's score is first averaged over them, so that noise seeds do not count as
examples. Severities are averaged in the same way.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from attngraft.errors import DataError
from attngraft.evaluation.suites.cache import read_cached, read_columns, read_fingerprint, require_pyarrow
from attngraft.evaluation.suites.catalog import SuiteChoice, parse_suites
from attngraft.evaluation.suites.evaluate import evaluate_suites
from attngraft.evaluation.suites.progress import SuiteProgress
from attngraft.evaluation.suites.result import FAILURES, GroupResult, SuiteRun, find_suite_run
from attngraft.results.measured import MeanOfStatistics, MeanScore, Statistic
from attngraft.results.records import RecordTable
from attngraft.results.study import ConditionResult, ConditionVariant, Difference, SuiteResult
from attngraft.study.config import StudyConfig
from attngraft.study.decisions import decisive_runs
from attngraft.study.plan import Records, finished_runs
from attngraft.study.predictions import RunStatistics, paired
from attngraft.study.progress import StudyProgress
from attngraft.study.verdict import compare_statistics, spread
from attngraft.tasks.calibration import calibration_statistic
from attngraft.tasks.images.sources import is_missing
from attngraft.tasks.task import Task
from attngraft.training.evaluate import EVALUATIONS, Weights, checkpoint_digest, weights_file
from attngraft.training.profiler import BenchmarkBatch
from attngraft.training.run_folder import RunRecord

_METRIC = "metric"  # name of a condition's only statistic


def _choices(config: StudyConfig) -> tuple[SuiteChoice, ...]:
    """Return the study's suites except `throughput`, which its cost measurement already covers.

    Raises:
        UsageError: a suite is unknown.
    """
    return tuple(choice for choice in parse_suites(config.suites) if choice.suite.kind != "throughput")


def suite_notes(config: StudyConfig) -> list[str]:
    """Return notes on the study's suites."""
    timed = any(choice.suite.kind == "throughput" for choice in parse_suites(config.suites))
    note = "Suite throughput: see Costs, where time and memory of all variants are measured side by side."
    return [note] if timed else []


def check_suites(config: StudyConfig, benchmark: BenchmarkBatch | None) -> None:
    """Check, before training, that the suites can be evaluated; with the opened data, check their classes and task, too.

    Raises:
        DataError: images are missing, must be downloaded first, or have an unexpected layout or different classes.
        ConfigError: the task does not support suites.
        UsageError: pyarrow is not installed.
    """
    choices = _choices(config)
    if choices:
        require_pyarrow()
    for choice in choices:
        if choice.data is not None and is_missing(choice.data):
            raise DataError(
                f"suite {choice.text}: {choice.data}: no such folder or file; specify the path of the images"
            )
        if choice.suite.check is not None:
            if choice.data is None:
                raise choice.suite.missing()
            classes = None if benchmark is None else list(benchmark.data.facts.get("classes", ()))
            choice.suite.check(choice.suite.test_set, choice.data, classes, str(config.out))
    if benchmark is not None and config.suites:
        benchmark.task.suite_support()


def evaluate_finished(config: StudyConfig, *, progress: StudyProgress) -> list[str]:
    """Evaluate finished runs under the study's suites, and return notes on failures.

    With `until`, runs that no decision is based on are omitted. Finished conditions are reused.

    Raises:
        KeyboardInterrupt: the study was interrupted; rerun the same command to resume.
    """
    choices, failed = _choices(config), []
    for name, by_seed in decisive_runs(config, finished_runs(config)).items():
        for seed, record in by_seed.items():
            label, weights = f"{name} seed {seed}", record.recipe.train.judge
            for choice in choices:  # separately, because a suite may fail
                try:
                    evaluate_suites(record.folder, [choice], weights=weights, progress=_Stages(label, progress))
                except FAILURES as error:
                    failed.append(f"{label}: its evaluation under suite {choice.text} failed: {error}")
    return failed


class _Stages(SuiteProgress):
    """Progress callbacks of a run's evaluation that report each condition as a stage of the study."""

    def __init__(self, label: str, progress: StudyProgress) -> None:
        self._label, self._progress, self._suite, self._shown = label, progress, "", ""

    def on_suite(self, title: str, *, conditions: int, done: int, examples: int) -> None:
        self._suite = title

    def on_condition(self, label: str) -> None:
        text = f"{self._label}: {self._suite}: {label}"
        if text != self._shown:  # only once for all noise seeds
            self._shown = text
            self._progress.on_stage(text)


class _EvaluatedRun:
    """A run's evaluation under a suite; each file is read only once."""

    def __init__(self, record: RunRecord, result: SuiteRun) -> None:
        self.record, self.result = record, result
        self.groups = {group.name: group for group in result.groups}
        self._read: dict[str, tuple[np.ndarray, Statistic]] = {}

    def stale_because(self, digest: str, checkpoints: dict[Path, str]) -> str:
        """Return why the results cannot be compared with the other runs' results; empty if they can.

        Missing information is ignored: deleted weights, and results of older versions without a digest.

        Args:
            digest: digest of the examples that most runs were evaluated on.
            checkpoints: cache of run folder -> digest of the weights; filled by this method.
        """
        folder, result = self.record.folder, self.result
        if folder not in checkpoints:
            weights: Weights = self.record.recipe.train.judge
            exists = weights_file(folder, weights).is_file()
            checkpoints[folder] = checkpoint_digest(self.record, weights) if exists else result.checkpoint
        if result.checkpoint != checkpoints[folder]:
            return "its results were computed with different weights from the run's current ones"
        if result.digest and result.digest != digest:
            return "it was evaluated on different examples from most runs"
        if result.digest:
            made = [read_fingerprint(folder / EVALUATIONS / file) for group in result.groups for file in group.files]
            expected = (result.checkpoint, result.digest)
            if any(each is None or (each["checkpoint"], each["data"]) != expected for each in made):
                return "its prediction files do not belong to its results"
        for group in result.groups:
            kept = [read_cached(folder / EVALUATIONS / file) for file in group.files]
            for metric, each in group.metrics.items():
                values = [one.metrics[metric] for one in kept if one is not None and metric in one.metrics]
                if values and not math.isclose(np.mean(values), each.mean, rel_tol=1e-6, abs_tol=1e-9):
                    return f"its {metric} is not that of its predictions"
        return ""

    def primary(self, name: str, task: Task) -> RunStatistics:
        """Return the primary metric, averaged over noise seeds and, for a kind's mean, over severities."""
        group = self.groups[name]
        members = (
            [group]
            if group.files
            else [
                each for each in self.result.groups if each.severity is not None and group.kind in (each.kind, "mean")
            ]
        )
        parts = [self._over_noise_seeds(member, task) for member in members if member.files]
        return self._statistics(parts[0][0], _mean([statistic for _, statistic in parts]))

    def _over_noise_seeds(self, group: GroupResult, task: Task) -> tuple[np.ndarray, Statistic]:
        if group.name not in self._read:
            paths = [self.record.folder / EVALUATIONS / file for file in group.files]
            names = read_columns(paths[0], only=("name",))["name"]
            before = next((read for read, _ in self._read.values()), names)
            self._read[group.name] = (
                before if np.array_equal(before, names) else names,  # share one copy of the names
                _mean([self._of_file(path, task) for path in paths]),
            )
        return self._read[group.name]

    def _of_file(self, path: Path, task: Task) -> Statistic:
        columns = read_columns(path, only=("score",))
        if "score" in columns:
            kept = read_cached(path)
            return MeanScore(columns["score"].astype(float), binary=kept is not None and kept.binary)
        columns = read_columns(path)
        table = RecordTable(names=columns["name"], columns=columns)
        return task.measure(table, self.record.facts).statistics[self.result.metric]

    def calibration(self, name: str, task: Task) -> RunStatistics:
        """Return the expected calibration error."""
        columns = read_columns(self.record.folder / EVALUATIONS / self.groups[name].files[0])
        return self._statistics(columns["name"], calibration_statistic(*task.calibration_inputs(columns)))

    def _statistics(self, names: np.ndarray, statistic: Statistic) -> RunStatistics:
        return RunStatistics(folder=self.record.folder, names=names, statistics={_METRIC: statistic})


def _mean(statistics: Sequence[Statistic]) -> Statistic:
    """Return the mean of statistics of the same examples, averaging mean scores example by example."""
    scores = [each.score for each in statistics if isinstance(each, MeanScore)]
    if len(statistics) == 1:
        return statistics[0]
    return MeanScore(np.mean(scores, axis=0)) if len(scores) == len(statistics) else MeanOfStatistics(statistics)


_Evaluations = Mapping[str, Mapping[int, _EvaluatedRun]]  # variant name -> seed -> evaluated run


def suite_results(config: StudyConfig, records: Records, task: Task) -> list[SuiteResult]:
    """Return the results of the study's suites, omitting suites without evaluated runs.

    Raises:
        DataError: runs were evaluated on different examples.
        TrainingError: a file of predictions cannot be read.
    """
    results = []
    checkpoints: dict[Path, str] = {}
    for choice in _choices(config):
        evaluated = {
            (name, seed): _EvaluatedRun(record, found)
            for name, by_seed in records.items()
            for seed, record in by_seed.items()
            if (found := find_suite_run(record.folder / EVALUATIONS / record.recipe.train.judge, choice)) is not None
        }
        if not evaluated:
            continue
        first, notes = next(iter(evaluated.values())).result, []
        digests = [run.result.digest for run in evaluated.values() if run.result.digest]
        most_common = max(digests, key=digests.count, default="")
        for (name, seed), run in list(evaluated.items()):
            if reason := run.stale_because(most_common, checkpoints):
                del evaluated[name, seed]
                notes.append(f"{name} seed {seed} is left out: {reason}; rerun without --report-only to evaluate it.")
        runs = {name: {seed: run for (of, seed), run in evaluated.items() if of == name} for name in records}
        first = next((run.result for run in evaluated.values()), first)
        results.append(_suite_result(config, choice, runs, first, task, notes))
    return results


def _suite_result(
    config: StudyConfig, choice: SuiteChoice, runs: _Evaluations, first: SuiteRun, task: Task, stale: list[str]
) -> SuiteResult:
    notes = [*first.notes, *stale]
    seeds = max((len(group.noise_seeds) for group in first.groups), default=0)
    if seeds > 1:
        notes.append(f"With noise, an example's score is its mean over {seeds} noise seeds.")
    for name, by_seed in runs.items():
        remarks = dict.fromkeys(text for run in by_seed.values() for group in run.result.groups for text in group.said)
        notes += [f"{name}: {text}." for text in remarks]
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


def _condition(
    config: StudyConfig, group: GroupResult, runs: _Evaluations, first: SuiteRun, task: Task
) -> ConditionResult:
    measured = {
        name: {
            seed: run for seed, run in by_seed.items() if group.name in run.groups and run.groups[group.name].metrics
        }
        for name, by_seed in runs.items()
    }

    def read(name: str) -> dict[int, RunStatistics]:
        return {
            seed: run.calibration(group.name, task) if first.metric == "ece" else run.primary(group.name, task)
            for seed, run in measured[name].items()
        }

    baseline = read(config.baseline.name)
    variants = []
    for variant in config.variants:
        own = measured[variant.name]
        values = np.array([run.groups[group.name].metrics[first.metric].mean for run in own.values()])
        every = [run.groups[group.name] for run in runs[variant.name].values() if group.name in run.groups]
        variants.append(
            ConditionVariant(
                value=spread(values) if len(values) else None,
                difference=None if variant.is_baseline else _difference(baseline, read(variant.name), first),
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


def _difference(
    baseline: Mapping[int, RunStatistics], variant: Mapping[int, RunStatistics], first: SuiteRun
) -> Difference | None:
    before, after = paired(baseline, variant)
    if not before:
        return None
    return compare_statistics(
        {seed: run.statistics[_METRIC] for seed, run in before.items()},
        {seed: run.statistics[_METRIC] for seed, run in after.items()},
        higher_is_better=first.higher_is_better,
    )
