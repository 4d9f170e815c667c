"""Saved predictions of runs: statistics with aligned examples, and the report's sections."""

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from attngraft.errors import DataError, TrainingError
from attngraft.opening import DAMAGE
from attngraft.results.column_rules import ColumnRules, different
from attngraft.results.measured import ClosedForm, MeanScore, Measured, Statistic, same_metric
from attngraft.results.records import Column, RecordTable, concatenated, open_records, rows_of
from attngraft.results.sections import Section
from attngraft.results.study import Chance, Interval
from attngraft.study.folds import FoldedRecord, compared_metrics, each_fold
from attngraft.study.verdict import compare_parts
from attngraft.suggest import one_line
from attngraft.tasks.task import Task
from attngraft.training.run_folder import RunFolder, RunRecord


@dataclass(frozen=True, kw_only=True)
class RunStatistics:
    """The statistics of a run that a study compares."""

    folder: Path  #: folder of the run, for messages
    names: np.ndarray  #: names of the examples, (N,)
    truth: Mapping[str, Column] = field(default_factory=dict)  #: facts of the examples, see `ColumnRules.truth`
    statistics: Mapping[str, Statistic]  #: by metric
    comparable: Mapping[str, str] = field(default_factory=dict)  #: see `Measured.comparable`
    metrics: Mapping[str, float] = field(default_factory=dict)  #: all metrics; empty without `Task.measure`


def read_statistics(record: RunRecord, task: Task) -> RunStatistics:
    """Read the statistics in predictions.npz.

    Raises:
        TrainingError: the file is missing or damaged, breaks a rule of the task's columns, or gives other metrics than the
            run recorded.
    """
    with open_predictions(record, task.column_rules) as table:
        statistics: dict[str, Statistic] = {}
        comparable: Mapping[str, str] = {}
        metrics: Mapping[str, float] = {}
        if type(task).measure is not Task.measure and table.columns:
            measured = _measure(record, task, table)
            statistics, comparable, metrics = dict(measured.statistics), measured.comparable, measured.values
        if table.score is not None:  # saved for all tasks, even without other statistics
            fixed = statistics[task.primary].held_fixed if task.primary in statistics else ""
            mean, own = MeanScore(table.score, table.binary, fixed), statistics.get(task.primary)
            if own is not None and not same_metric(mean.point, own.point):
                raise TrainingError(
                    f"{record.folder}: the mean of the scores in predictions.npz is {mean.point:.6g}, but their "
                    f"{task.primary} {own.point:.6g}; restore a good copy, or delete the folder to train the run again"
                )
            statistics[task.primary] = mean
        _check_metrics(record, metrics)
        return RunStatistics(
            folder=record.folder,
            names=table.names,
            truth=task.column_rules.truth_of(table),
            statistics=statistics,
            comparable=comparable,
            metrics=metrics,
        )


def read_statistics_of(
    records: Mapping[str, Mapping[int, RunRecord]], task: Task
) -> dict[str, dict[int, RunStatistics]]:
    """Return the statistics of each variant's runs by seed; runs with equal names and truth share one copy.

    Raises:
        TrainingError: see `read_statistics`.
    """
    shared: RunStatistics | None = None

    def read(record: RunRecord) -> RunStatistics:
        nonlocal shared
        run = read_statistics(record, task)
        if shared is None or not np.array_equal(run.names, shared.names) or different(run.truth, shared.truth):
            shared = run
        return replace(run, names=shared.names, truth=shared.truth)

    return {name: {seed: read(record) for seed, record in by_seed.items()} for name, by_seed in records.items()}


def _measure(record: RunRecord, task: Task, table: RecordTable) -> Measured:
    try:
        return task.measure(table, record.facts)
    except DAMAGE as error:
        raise TrainingError(
            f"{record.predictions or record.folder}: no metrics can be computed from these predictions and the facts in "
            f"data.json ({one_line(error)}); restore good copies, or delete the folder to train the run again"
        ) from error


def _check_metrics(record: RunRecord, found: Mapping[str, float]) -> None:
    """Compare a run's metrics with those that its predictions give; runs of earlier versions have no checksums."""
    for name, value in ({} if isinstance(record, FoldedRecord) else compared_metrics(record)).items():
        if name in found and not same_metric(value, found[name]):
            raise TrainingError(
                f"{record.folder}: its recorded {name} is {value:.6g}, but its predictions give {found[name]:.6g}; restore "
                "good copies of metrics.jsonl and predictions.npz, or delete the folder to train the run again"
            )


@contextmanager
def open_predictions(record: RunRecord, rules: ColumnRules | None = None) -> Iterator[RecordTable]:
    """Context manager that opens a run's predictions, with folds those of all folds as one table.

    Raises:
        TrainingError: a file is missing or damaged, differs from its checksum, or breaks one of the `rules`.
    """
    with ExitStack() as files:
        runs = each_fold([record])
        paths = [run.predictions or RunFolder(run.folder).predictions for run in runs]
        for run, path in zip(runs, paths, strict=True):
            run.check(path)
        tables = [files.enter_context(open_records(path)) for path in paths]
        if rules is not None:
            tables = [_checked(table, rules, path) for table, path in zip(tables, paths, strict=True)]
            _check_folds(tables, paths)
        yield concatenated(tables)


def _check_folds(tables: Sequence[RecordTable], paths: Sequence[Path]) -> None:
    """Check that each example is in one fold; within the data of folds, names are unique."""
    if len(tables) == 1:
        return
    names = np.concatenate([table.names for table in tables])
    found, counts = np.unique(names, return_counts=True)
    if (counts == 1).all():
        return
    fold = np.repeat(np.arange(len(tables)), [len(table.names) for table in tables])
    name = found[counts > 1][0]
    first, second = (paths[each] for each in fold[names == name][:2])
    raise TrainingError(
        f"{second}: contains the example {name}, which is also in {first}; restore good copies, or delete the runs' "
        "folders to train them again"
    )


def _checked(table: RecordTable, rules: ColumnRules, path: Path) -> RecordTable:
    """Return the table with the checked columns in memory."""
    columns = rules.read(table)
    try:
        broken = rules.broken(columns)
    except DAMAGE as error:  # columns of another type or shape
        broken = one_line(error)
    if broken:
        raise TrainingError(f"{path}: {broken}; restore a good copy, or delete the run's folder to train it again")
    return replace(table, columns=ChainMap(columns, table.columns))  # type: ignore[arg-type]  # it is only read


def paired(
    baseline: Mapping[int, RunStatistics], variant: Mapping[int, RunStatistics]
) -> tuple[dict[int, RunStatistics], dict[int, RunStatistics]]:
    """Return the runs of the seeds common to both variants, with all examples in the same order.

    Raises:
        DataError: see `aligned`.
    """
    seeds = [seed for seed in variant if seed in baseline]
    runs = aligned([*(baseline[seed] for seed in seeds), *(variant[seed] for seed in seeds)])
    return dict(zip(seeds, runs, strict=False)), dict(zip(seeds, runs[len(seeds) :], strict=True))


def aligned(runs: Sequence[RunStatistics]) -> list[RunStatistics]:
    """Return the statistics of each run in the order of the first run's examples.

    Raises:
        DataError: the runs did not evaluate the same examples, or with other labels; the message names two of them.
    """
    result: list[RunStatistics] = []
    for run in runs:
        first = runs[0].names
        if run.names is first or np.array_equal(run.names, first):
            result.append(_same_truth(runs[0], run))
            continue
        order = np.argsort(first, kind="stable")
        own = np.argsort(run.names, kind="stable")
        if not np.array_equal(run.names[own], first[order]):
            raise DataError(
                f"{run.folder} and {runs[0].folder} were evaluated on different examples: the data changed "
                "between these runs; delete the runs on the old data and rerun the study"
            )
        index = np.empty(len(first), dtype=np.int64)
        index[order] = own
        taken = {name: statistic.take(index) for name, statistic in run.statistics.items()}
        truth = {name: rows_of(column, index) for name, column in run.truth.items()}
        result.append(_same_truth(runs[0], replace(run, names=first, statistics=taken, truth=truth)))
    return result


def _same_truth(first: RunStatistics, run: RunStatistics) -> RunStatistics:
    if name := different(run.truth, first.truth):
        raise DataError(
            f"{run.folder} and {first.folder} have different {name} (labels) for the same examples: the data changed "
            "between these runs, or predictions.npz did; restore good copies, or delete these runs and rerun the study"
        )
    return run


def chance_of(record: RunRecord, task: Task) -> Chance | None:
    """Return the metrics by chance on a run's examples; None if they are not defined or not in the run's files.

    Raises:
        TrainingError: predictions cannot be read.
    """
    with open_predictions(record) as table:
        chance = task.chance(table, record.facts) if table.columns else None
    if chance is None:
        return None
    return replace(chance, values={name: value for name, value in chance.values.items() if np.isfinite(value)})


def relative_change(
    baseline: Mapping[int, RunStatistics], variant: Mapping[int, RunStatistics], *, metric: str
) -> float | None:
    """Return `VariantResult.relative_change` from the scores of `metric` or, if it has none, of the first that has.

    Args:
        baseline, variant: from `paired`.
    """
    names = [name for run in baseline.values() for name in run.statistics]
    for name in dict.fromkeys([metric, "loss", *names]):
        pairs = [(run.statistics.get(name), variant[seed].statistics.get(name)) for seed, run in baseline.items()]
        scores = [(b.score, v.score) for b, v in pairs if isinstance(b, MeanScore) and isinstance(v, MeanScore)]
        if scores and len(scores) == len(pairs):
            change = np.mean([np.abs(v.astype(float) - b).mean() for b, v in scores])
            spread = np.mean([_mean_difference(b.astype(float)) for b, _ in scores])
            return float(change / spread) if np.isfinite(change) and spread > 0 else None
    return None


def _mean_difference(scores: np.ndarray) -> float:
    """Return the mean absolute difference of two values drawn at random (Gini's), from the sorted values."""
    count = len(scores)
    return float(2 * ((2 * np.arange(count) - count + 1) * np.sort(scores)).sum() / count**2)


def variant_sections(task: Task, records: Sequence[RunRecord]) -> list[Section]:
    """Return the task's sections for a variant's finished runs; empty if a run saved no columns for them.

    Raises:
        TrainingError: predictions cannot be read.
    """
    if not records:
        return []
    with ExitStack() as files:
        tables = [files.enter_context(open_predictions(record)) for record in records]
        return task.sections(tables, facts=records[0].facts) if all(tables) else []


def part_differences(
    sections: Sequence[Section],
    baseline: Mapping[int, RunStatistics],
    variant: Mapping[int, RunStatistics],
    *,
    folds: int | None = None,
) -> dict[str, list[Interval | None]]:
    """Return `VariantResult.part_differences` for the metrics that the columns of a variant's sections name.

    Args:
        baseline, variant: from `paired`.
    """
    columns = [column for section in sections if section.table is not None for column in section.table.columns]
    found = {}
    for metric in dict.fromkeys(column.parts_of for column in columns if column.parts_of):
        before, after = (
            [each for run in runs.values() if isinstance(each := run.statistics.get(metric), ClosedForm)]
            for runs in (baseline, variant)
        )
        if len(before) == len(after) == len(baseline):
            found[metric] = compare_parts(before, after, folds=folds)
    return found
