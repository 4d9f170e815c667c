"""Results of one suite on one model as plain data, saved as results.json and results.csv."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import AttngraftError, ConfigError
from attngraft.evaluation.suites.cache import CachedPredictions, read_columns, suite_checksums
from attngraft.evaluation.suites.catalog import SuiteChoice
from attngraft.files import write_atomically
from attngraft.opening import read_json
from attngraft.results.sections import Reliability
from attngraft.results.statistics import t_interval
from attngraft.results.storage import table_csv
from attngraft.results.study import Interval
from attngraft.strict import read
from attngraft.tasks.calibration import reliability
from attngraft.tasks.suites import Condition
from attngraft.tasks.task import Task

FORMAT = 1
RESULT_FILE, TABLE_FILE = "results.json", "results.csv"
_LIMITED = re.compile(r"-limit\d+$")  #: suffix of result folders for a subset of the examples (`--limit`)

#: errors after which the remaining suites are still evaluated: unreadable examples, out of memory, a full disk
FAILURES = (AttngraftError, RuntimeError, OSError)


@dataclass(frozen=True, kw_only=True)
class GroupMetric:
    """A metric under the conditions of one group."""

    mean: float  #: mean over noise seeds
    interval: Interval | None  #: Student's 95% interval over noise seeds; None: one value, or all equal and not 0
    values: list[float]  #: one per noise seed


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """Result of conditions that differ only in their noise seed, or the mean over a kind's severities."""

    name: str
    label: str
    noise_seeds: list[int]  #: empty if not random
    metrics: dict[str, GroupMetric]
    files: list[str]  #: prediction files, relative to the run's `evaluation` folder; empty for a mean over severities
    settings: dict[str, Any] = field(default_factory=dict)
    kind: str = ""
    severity: int | None = None  #: severity within the kind; None: the mean over severities
    reason: str = ""  #: reason why there are no numbers
    said: list[str] = field(default_factory=list)  #: how the examples were changed, if that depends on the model


@dataclass(frozen=True, kw_only=True)
class SuiteRun:
    """Results of one suite on one model."""

    suite: str
    title: str
    run: str
    weights: str
    checkpoint: str  #: SHA-256 of the weights file
    data: str
    examples: int
    metric: str
    higher_is_better: bool
    groups: list[GroupResult]
    classes: list[str] = field(default_factory=list)  #: names of the class indices in targets and predictions
    notes: list[str] = field(default_factory=list)
    reliability: Reliability | None = None
    machine: dict[str, Any] = field(default_factory=dict)  #: environment in which the throughput was measured
    version: str = ""
    digest: str = ""  #: digest of the examples; equal digests mean the same examples
    format: int = FORMAT


class SuitesFailed(AttngraftError):
    """Error raised if some of several suites failed.

    `found` contains the results of the other suites, `failed` the error message for each failed suite.
    """

    def __init__(self, found: Sequence[SuiteRun], failed: Mapping[str, str]) -> None:
        self.found, self.failed = list(found), dict(failed)
        by_error: dict[str, list[str]] = {}  # report an error shared by suites, such as missing weights, once
        for text, error in failed.items():
            by_error.setdefault(error, []).append(text)
        super().__init__(
            "\n".join(
                f"suite{'s' * (len(texts) > 1)} {', '.join(texts)} failed: {error}" for error, texts in by_error.items()
            )
        )


def group_metric(values: Sequence[float]) -> GroupMetric:
    return GroupMetric(
        mean=float(np.mean(values)),
        interval=t_interval(values) if len(values) > 1 else None,
        values=[float(value) for value in values],
    )


def group_results(
    conditions: Sequence[Condition],
    cached: Mapping[str, CachedPredictions],
    refused: Mapping[str, str],
    folder: Path,
    *,
    root: Path,
) -> list[GroupResult]:
    """Return the result of each group of conditions, then the means over severities.

    Args:
        conditions: the suite's conditions.
        cached: predictions for each condition's name.
        refused: for each group without numbers, the reason.
        folder: folder of the predictions.
        root: the run's `evaluation` folder.
    """
    groups: dict[str, list[Condition]] = {}
    for condition in conditions:
        groups.setdefault(condition.group, []).append(condition)
    results = []
    for name, members in groups.items():
        first = members[0]
        predictions = [] if name in refused else [cached[each.name] for each in members]
        by_seed = [each.metrics for each in predictions]
        results.append(
            GroupResult(
                name=name,
                label=first.label,
                noise_seeds=[each.noise_seed for each in members if each.noise_seed is not None],
                metrics={
                    metric: group_metric([each[metric] for each in by_seed])
                    for metric in (by_seed[0] if by_seed else ())
                },
                files=[_relative(folder, each.name, root) for each in members] if by_seed else [],
                settings=dict(first.settings),
                kind=first.kind,
                severity=first.severity,
                reason=refused.get(name, ""),
                said=list(dict.fromkeys(text for each in predictions for text in each.said)),
            )
        )
    return [*results, *means_over_severities(results)]


def calibration_results(
    folder: Path, condition: Condition, task: Task, *, root: Path
) -> tuple[list[GroupResult], Reliability]:
    """Return the expected calibration error of the condition's predictions, and the reliability bins."""
    stated, true = task.calibration_inputs(read_columns(folder / f"{condition.name}.parquet"))
    bins = reliability([stated.reshape(-1)], [true.reshape(-1)])
    group = GroupResult(
        name="calibration",
        label="expected calibration error, 15 bins",
        noise_seeds=[],
        metrics={"ece": group_metric(bins.error_by_seed)},
        files=[_relative(folder, condition.name, root)],
    )
    return [group], bins


def _relative(folder: Path, name: str, root: Path) -> str:
    return (folder / f"{name}.parquet").relative_to(root).as_posix()


def means_over_severities(groups: Sequence[GroupResult]) -> list[GroupResult]:
    """Return the mean over severities for each kind and, with several kinds, the mean over kinds.

    Means are computed for each noise seed separately.
    """
    by_kind: dict[str, list[GroupResult]] = {}
    for group in groups:
        if group.kind and group.metrics:
            by_kind.setdefault(group.kind, []).append(group)
    means = [
        _mean(f"{kind}-mean", f"{each[0].label.rpartition(', severity')[0]}, mean", each, kind=kind)
        for kind, each in by_kind.items()
    ]
    if len(means) > 1:
        means.append(_mean("mean", "mean over all", means, kind="mean"))
    return means


def _mean(name: str, label: str, groups: Sequence[GroupResult], *, kind: str) -> GroupResult:
    """Return the mean over groups, by noise seed; groups with fewer seeds add their mean to each seed."""
    seeds = max((group.noise_seeds for group in groups), key=len)
    metrics = {}
    for metric in groups[0].metrics:
        rows = [group.metrics[metric].values for group in groups]
        table = np.array([row if len(row) == max(len(seeds), 1) else [np.mean(row)] * len(seeds) for row in rows])
        metrics[metric] = group_metric(table.mean(0).tolist())
    return GroupResult(name=name, label=label, noise_seeds=list(seeds), metrics=metrics, files=[], kind=kind)


def save_suite_run(result: SuiteRun, folder: Path) -> None:
    """Write results.json and results.csv, and the reliability diagram (SVG, PNG) if there is one.

    Raises:
        StorageError: the files cannot be written.
    """
    write_atomically(folder / RESULT_FILE, json.dumps(dataclasses.asdict(result), indent=2) + "\n")
    write_atomically(folder / TABLE_FILE, _csv(result))
    if result.reliability is not None:
        from attngraft.drawing.reliability import reliability_files  # matplotlib is slow to import

        title = "/".join(Path(result.run).parts[-2:])
        for name, content in reliability_files(result.reliability, title=title).items():
            write_atomically(folder / name, content)


def find_suite_run(evaluations: Path, choice: SuiteChoice) -> SuiteRun | None:
    """Return the newest results of a suite in a run's `evaluation/<weights>` folder, or None.

    Only results on all examples of the run's validation split, or of the choice's folder, are considered.

    Raises:
        ConfigError: the results cannot be read.
    """
    name = choice.suite.name
    folders = [evaluations / name] if choice.data is None else evaluations.glob(f"{name}--*")
    paths = [path for folder in folders if (path := folder / RESULT_FILE).is_file()]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        found = read_suite_run(path.parent)
        if found is not None and (choice.data is None or found.data == choice.data):
            return found
    return None


def read_suite_run(folder: Path) -> SuiteRun | None:
    """Return the results in a suite's folder; None if missing or computed with `--limit`.

    Raises:
        ConfigError: the results are damaged or cannot be read.
    """
    path = folder / RESULT_FILE
    if _LIMITED.search(folder.name) or not path.is_file():
        return None
    for file, damage in suite_checksums(folder).damaged().items():
        raise ConfigError(f"{file}: damaged since it was written ({damage}); delete the folder and rerun the suite")
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a valid suite result: {error}; delete the file and rerun the suite") from None
    return read(SuiteRun, content, where=str(path))


def _csv(result: SuiteRun) -> str:
    header = ["suite", "condition", "label", "metric", "mean", "low", "high", "noise_seeds", "examples", "reason"]
    rows = []
    for group in result.groups:
        for metric, each in group.metrics.items() or [("", None)]:
            interval = None if each is None else each.interval
            numbers = [
                None if each is None else each.mean,
                None if interval is None else interval.low,
                None if interval is None else interval.high,
            ]
            seeds = len(group.noise_seeds)
            rows.append([result.suite, group.name, group.label, metric, *numbers, seeds, result.examples, group.reason])
    return table_csv(header, rows)
