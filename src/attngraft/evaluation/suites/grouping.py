"""From predictions under single conditions to what is told of a suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from attngraft.evaluation.suites.condition import Condition
from attngraft.evaluation.suites.kept import Kept, read_columns
from attngraft.evaluation.suites.result import GroupResult, means_over_severities, measured
from attngraft.files import write_atomically
from attngraft.results.sections import Reliability
from attngraft.tasks.calibration import reliability
from attngraft.tasks.task import Task


def grouped(
    conditions: Sequence[Condition], kept: Mapping[str, Kept], refused: Mapping[str, str], folder: Path, *, root: Path
) -> list[GroupResult]:
    """A result for each group of conditions, then the means over severities.

    Args:
        conditions: the suite's.
        kept: by name of the condition.
        refused: by group, why it has no numbers.
        folder: of the predictions.
        root: of the run's evaluations.
    """
    groups: dict[str, list[Condition]] = {}
    for condition in conditions:
        groups.setdefault(condition.group, []).append(condition)
    found = []
    for name, members in groups.items():
        first = members[0]
        files = [] if name in refused else [kept[each.name] for each in members]
        there = [each.metrics for each in files]
        found.append(
            GroupResult(
                name=name,
                label=first.label,
                noise_seeds=[each.noise_seed for each in members if each.noise_seed is not None],
                metrics={metric: measured([each[metric] for each in there]) for metric in (there[0] if there else ())},
                files=[_relative(folder, each.name, root) for each in members] if there else [],
                settings=dict(first.settings),
                kind=first.kind,
                severity=first.severity,
                reason=refused.get(name, ""),
                said=list(dict.fromkeys(text for each in files for text in each.said)),
            )
        )
    return [*found, *means_over_severities(found)]


def calibrated(folder: Path, condition: Condition, task: Task, *, root: Path) -> tuple[list[GroupResult], Reliability]:
    """The expected calibration error of predictions on clean images, and the bins behind it."""
    stated, true = task.calibration_inputs(read_columns(folder / f"{condition.name}.parquet"))
    found = reliability([stated.reshape(-1)], [true.reshape(-1)])
    group = GroupResult(
        name="calibration",
        label="expected calibration error, 15 bins",
        noise_seeds=[],
        metrics={"ece": measured(found.error_by_seed)},
        files=[_relative(folder, condition.name, root)],
    )
    return [group], found


def write_diagram(found: Reliability, folder: Path, *, title: str) -> None:
    """reliability.svg and reliability.png.

    Raises:
        StorageError: they cannot be written.
    """
    from attngraft.drawing.reliability import reliability_files

    for name, content in reliability_files(found, title=title).items():
        write_atomically(folder / name, content)


def _relative(folder: Path, name: str, root: Path) -> str:
    return (folder / f"{name}.parquet").relative_to(root).as_posix()
