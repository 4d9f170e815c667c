"""What a suite found of one run, as plain data: results.json and results.csv beside the predictions."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import ConfigError
from attngraft.evaluation.suites.catalog import SuiteChoice
from attngraft.files import write_atomically
from attngraft.results.sections import Reliability
from attngraft.results.statistics import t_interval
from attngraft.results.study import Interval

FORMAT = 1
RESULT_FILE, TABLE_FILE = "results.json", "results.csv"
#: how the folder of results on a part of the images (`--limit`) ends: whatever the data's own folder is called comes before
_LIMITED = re.compile(r"-limit\d+$")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A metric under the conditions of one group."""

    mean: float  #: over noise seeds
    interval: Interval | None  #: Student's 95% interval over noise seeds; None: nothing is random, or all seeds agree
    values: list[float]  #: one per noise seed


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """Conditions that differ in their noise seed alone; or the mean over the severities of a kind."""

    name: str
    label: str
    noise_seeds: list[int]  #: none where nothing is random
    metrics: dict[str, Measured]
    files: list[str]  #: of predictions, relative to the run's `evaluation` folder; none for a mean over severities
    settings: dict[str, Any] = field(default_factory=dict)
    kind: str = ""
    severity: int | None = None  #: of a kind; None: the mean over them
    reason: str = ""  #: why there are no numbers
    said: list[str] = field(default_factory=list)  #: how the changes were made, where that is the model's affair


@dataclass(frozen=True, kw_only=True)
class SuiteRun:
    """A suite, evaluated on one run."""

    suite: str
    title: str
    run: str
    weights: str
    checkpoint: str  #: SHA-256 of the file of weights
    data: str
    examples: int
    metric: str
    higher_is_better: bool
    groups: list[GroupResult]
    classes: list[str] = field(default_factory=list)  #: what the numbers of targets and predictions mean
    notes: list[str] = field(default_factory=list)
    reliability: Reliability | None = None
    machine: dict[str, Any] = field(default_factory=dict)  #: where something was timed
    version: str = ""
    digest: str = ""  #: of the examples: two runs with the same one saw the same
    format: int = FORMAT


def measured(values: Sequence[float]) -> Measured:
    return Measured(
        mean=float(np.mean(values)),
        interval=t_interval(values) if len(values) > 1 else None,
        values=[float(value) for value in values],
    )


def means_over_severities(groups: Sequence[GroupResult]) -> list[GroupResult]:
    """For every kind the mean over its severities, and of several kinds the mean over them, by noise seed."""
    by_kind: dict[str, list[GroupResult]] = {}
    for group in groups:
        if group.kind and group.metrics:
            by_kind.setdefault(group.kind, []).append(group)
    found = [_mean(f"{kind}-mean", f"{_of(each)}, mean", each, kind=kind) for kind, each in by_kind.items()]
    if len(found) > 1:
        found.append(_mean("mean", "mean over all", found, kind="mean"))
    return found


def _of(groups: Sequence[GroupResult]) -> str:
    return groups[0].label.rpartition(", severity")[0]


def _mean(name: str, label: str, groups: Sequence[GroupResult], *, kind: str) -> GroupResult:
    """Where some are random and others not, those that are not count the same with every noise seed."""
    seeds = max((group.noise_seeds for group in groups), key=len)
    metrics = {}
    for metric in groups[0].metrics:
        rows = [group.metrics[metric].values for group in groups]
        table = np.array([row if len(row) == max(len(seeds), 1) else [np.mean(row)] * len(seeds) for row in rows])
        metrics[metric] = measured(table.mean(0).tolist())
    return GroupResult(name=name, label=label, noise_seeds=list(seeds), metrics=metrics, files=[], kind=kind)


def save_suite_run(result: SuiteRun, folder: Path) -> None:
    """Write results.json and results.csv.

    Raises:
        StorageError: they cannot be written.
    """
    write_atomically(folder / RESULT_FILE, json.dumps(dataclasses.asdict(result), indent=2) + "\n")
    write_atomically(folder / TABLE_FILE, _csv(result))


def find_suite_run(evaluations: Path, choice: SuiteChoice) -> SuiteRun | None:
    """The results in a run's `evaluation/<weights>` of this suite, on all of the run's own validation part or the images
    that `choice` names, the newest where those have been other ones since; None: there are none.

    Raises:
        ConfigError: they cannot be read.
    """
    from attngraft.strict import read

    name = choice.suite.name
    folders = [evaluations / name] if choice.data is None else evaluations.glob(f"{name}--*")
    paths = [
        path for folder in folders if not _LIMITED.search(folder.name) and (path := folder / RESULT_FILE).is_file()
    ]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read as a suite's result: {error}") from None
        found = read(SuiteRun, content, where=str(path))
        if choice.data is None or found.data == choice.data:
            return found
    return None


def _csv(result: SuiteRun) -> str:
    sheet = io.StringIO()
    writer = csv.writer(sheet, lineterminator="\n")
    writer.writerow(
        ["suite", "condition", "label", "metric", "mean", "low", "high", "noise_seeds", "examples", "reason"]
    )
    for group in result.groups:
        for metric, each in group.metrics.items() or [("", None)]:
            interval = None if each is None else each.interval
            writer.writerow(
                [
                    result.suite,
                    group.name,
                    group.label,
                    metric,
                    "" if each is None else each.mean,
                    "" if interval is None else interval.low,
                    "" if interval is None else interval.high,
                    len(group.noise_seeds),
                    result.examples,
                    group.reason,
                ]
            )
    return sheet.getvalue()
