"""Evaluating a run under suites: what is done is kept, what is left is done, and the results are written.

    RUN/evaluation/<weights>/<suite>/<condition>.parquet  predictions, a file per condition and noise seed
                                     results.json, results.csv
                                     reliability.svg, reliability.png    (calibration)

Of other data than the run's own, or of a part of it, the folder is `<suite>--<which>`. A condition whose file is there,
made from the same weights, data and settings, is not evaluated again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attngraft._version import __version__
from attngraft.environment import environment
from attngraft.errors import TrainingError
from attngraft.evaluation.suites.bench import Bench, Conditions
from attngraft.evaluation.suites.catalog import SuiteChoice
from attngraft.evaluation.suites.condition import Condition
from attngraft.evaluation.suites.failing import FAILURES, SuitesFailed
from attngraft.evaluation.suites.ground import Ground, open_ground
from attngraft.evaluation.suites.grouping import calibrated, grouped, write_diagram
from attngraft.evaluation.suites.kept import Fingerprint, Kept, need_pyarrow, read_kept, write_kept
from attngraft.evaluation.suites.progress import SuiteLog, SuiteProgress
from attngraft.evaluation.suites.result import GroupResult, SuiteRun, save_suite_run
from attngraft.evaluation.suites.salience import NotPossible
from attngraft.evaluation.suites.throughput import measure_throughput
from attngraft.training.evaluate import Weights, weights_file
from attngraft.training.run_folder import RunRecord, read_run
from attngraft.training.setup import create_accelerator
from attngraft.training.stopping import Interrupted, StopSignal

log = logging.getLogger(__name__)

FOLDER = "evaluation"
FORMAT = 2  #: of what decides predictions; raised when the same settings come to mean something else


def evaluate_suites(
    folder: Path | str,
    choices: Sequence[SuiteChoice],
    *,
    data: str | None = None,
    split: str | None = None,
    weights: Weights = "last",
    limit: int | None = None,
    progress: SuiteProgress | None = None,
) -> list[SuiteRun]:
    """Evaluate the model that a run trained under suites, as far as that is not done yet.

        evaluate_suites("runs/flowers", parse_suites(["robustness", "calibration"]))

    Args:
        folder: the run's folder.
        choices: from `parse_suites`.
        data: other data of the same kind, and the images of test sets that were downloaded; None: the run's own.
        split: another part of the data by name.
        weights: of the last checkpoint, the best epoch, or their moving averages.
        limit: so many of the examples, spread evenly over all.
        progress: who is told; None logs plain lines.

    Returns:
        The suites' results in their order, which are also written into the run's folder.

    Raises:
        TrainingError: no run, no such weights, or pyarrow is not installed.
        DataError: as `open_ground`: says what must be downloaded. Nothing was evaluated.
        ConfigError: the task does not say how its examples are pixels. Nothing was evaluated.
        SuitesFailed: of several suites some failed while they were evaluated (one that was asked for alone raises its
            error itself); the others were evaluated all the same.
        Interrupted: Ctrl-C; what was done stays, and the same call goes on.
    """
    need_pyarrow()
    record = read_run(folder)
    grounds: dict[tuple[str | None, str], Ground] = {}
    for choice in choices:
        key = (choice.data, choice.suite.test_set)
        if key not in grounds:
            grounds[key] = open_ground(record, choice, data=data, split=split, limit=limit)
    work = _Work(record, weights, progress or SuiteLog())
    with StopSignal(work.bench.accelerator) as stop:
        return work.suites([(choice, grounds[choice.data, choice.suite.test_set]) for choice in choices], stop)


def checkpoint_digest(record: RunRecord, weights: Weights) -> str:
    """SHA-256 of the file of a run's weights.

    Raises:
        TrainingError: the run has no such weights.
    """
    path = weights_file(record.folder, weights)
    if not path.is_file():
        raise TrainingError(f"{path}: is not there: the run has no such weights (yet)")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Work:
    """One run under suites."""

    def __init__(self, record: RunRecord, weights: Weights, progress: SuiteProgress) -> None:
        self.record, self.weights, self.progress = record, weights, progress
        self.checkpoint = checkpoint_digest(record, weights)
        self.bench = Bench(record, weights, create_accelerator(record.recipe))

    def suites(self, asked: Sequence[tuple[SuiteChoice, Ground]], stop: StopSignal) -> list[SuiteRun]:
        """Evaluate each, also where one before it failed.

        Raises:
            SuitesFailed: some did. An only suite's error is raised as it is, and so is any where there are several
                processes: the others wait for the one that failed, so that none may go on to the next suite.
            Interrupted: `stop` said so.
        """
        found: list[SuiteRun] = []
        failed: dict[str, str] = {}
        for choice, ground in asked:
            try:
                found.append(self.suite(choice, ground, stop))
            except FAILURES as error:
                if len(asked) == 1 or self.bench.accelerator.num_processes > 1:
                    raise
                log.debug("suite %s failed", choice.text, exc_info=True)
                self.progress.on_failure(choice.suite.title, str(error))
                failed[choice.text] = str(error)  # not the error, which holds on to the tensors of its frames
        if failed:
            raise SuitesFailed(found, failed)
        return found

    def suite(self, choice: SuiteChoice, ground: Ground, stop: StopSignal) -> SuiteRun:
        """Evaluate, write and return.

        Raises:
            Interrupted: `stop` said so.
        """
        suite, own = choice.suite, self._folder(choice.suite.name, ground)
        metric, higher = ("real", True) if ground.accepted else (ground.task.primary, ground.task.higher_is_better)
        notes: list[str] = []
        machine: dict[str, Any] = {}
        reliable = None
        if suite.kind == "throughput":
            groups, notes, machine = self._timed(ground)
            metric, higher = "images_per_second", True
        else:
            folder = self._folder(suite.folder, ground)
            kept, refused = self._evaluated(choice, ground, folder, stop)
            self.bench.accelerator.wait_for_everyone()  # until the one that writes has written
            if suite.kind == "calibration":
                groups, reliable = calibrated(folder, suite.conditions[0], ground.task, root=self._root)
                metric, higher = "ece", False
            else:
                groups = grouped(suite.conditions, kept, refused, folder, root=self._root)
        found = SuiteRun(
            suite=suite.name,
            title=suite.title,
            run=str(self.record.folder),
            weights=self.weights,
            checkpoint=self.checkpoint,
            data=ground.where,
            examples=len(ground.split),
            metric=metric,
            higher_is_better=higher,
            groups=groups,
            classes=_class_names(self.record),
            notes=[*ground.notes, *notes],
            reliability=reliable,
            machine=machine,
            version=__version__,
            digest=ground.digest,
        )
        if self.bench.accelerator.is_main_process:
            save_suite_run(found, own)
            if reliable is not None:
                write_diagram(reliable, own, title="/".join(self.record.folder.parts[-2:]))
        return found

    @property
    def _root(self) -> Path:
        return self.record.folder / FOLDER

    def _folder(self, name: str, ground: Ground) -> Path:
        return self._root / self.weights / (f"{name}--{ground.slug}" if ground.slug else name)

    def _evaluated(
        self, choice: SuiteChoice, ground: Ground, folder: Path, stop: StopSignal
    ) -> tuple[dict[str, Kept], dict[str, str]]:
        """What is kept of each condition, by name; why there is nothing of the others, by group."""
        suite, progress = choice.suite, self.progress
        prints = {each.name: self._fingerprint(each, ground) for each in suite.conditions}
        there = {name: read_kept(_file(folder, name), fingerprint=each) for name, each in prints.items()}
        kept = {name: each for name, each in there.items() if each is not None}
        self.bench.accelerator.wait_for_everyone()  # until all have looked: from now on files come
        progress.on_suite(suite.title, conditions=len(prints), done=len(kept), examples=len(ground.split))
        refused: dict[str, str] = {}
        evaluate = Conditions(self.bench, ground, suite.conditions, progress=progress)
        try:
            for condition in suite.conditions:
                if condition.name in kept or condition.group in refused:
                    continue
                progress.on_condition(condition.label)
                try:
                    evaluation = evaluate(condition, stop)
                except NotPossible as error:
                    refused[condition.group] = str(error)
                    progress.on_outcome(condition.label, f"no numbers: {error}")
                    continue
                if evaluation is None:
                    raise Interrupted(
                        f"{suite.title}: {len(kept)} of {len(prints)} conditions are kept in {folder}; the same command "
                        "goes on"
                    )
                kept[condition.name] = write_kept(
                    _file(folder, condition.name),
                    evaluation,
                    ground.support.columns,
                    noise_seed=condition.noise_seed,
                    fingerprint=prints[condition.name],
                    said=evaluate.said,
                    write=self.bench.accelerator.is_main_process,
                )
                metric, value = next(iter(evaluation.metrics.items()))
                seed = "" if condition.noise_seed is None else f" (noise seed {condition.noise_seed})"
                progress.on_outcome(condition.label + seed, f"{metric} {value:.4g}")
        finally:
            evaluate.end()
        return kept, refused

    def _fingerprint(self, condition: Condition, ground: Ground) -> Fingerprint:
        recipe = self.record.recipe
        return {
            "format": FORMAT,
            "checkpoint": self.checkpoint,
            "weights": self.weights,
            "data": ground.digest,
            "examples": len(ground.split),
            "condition": {"name": condition.name, "noise_seed": condition.noise_seed, **condition.settings},
            "answers": None if ground.answers is None else sorted(ground.answers.tolist()),
            "task": {name: value for name, value in recipe.task.items() if name != "data"},
            "precision": recipe.train.amp,
        }

    def _timed(self, ground: Ground) -> tuple[list[GroupResult], list[str], dict[str, Any]]:
        bench = self.bench
        self.progress.on_suite("Throughput", conditions=1, done=0, examples=len(ground.split))
        self.progress.on_condition("timing batches")
        metrics, size = measure_throughput(ground, bench.model, self.record.recipe, bench.accelerator)
        label = f"batches of {size}"
        self.progress.on_outcome(label, f"{metrics['images_per_second'].mean:.4g} images per second")
        group = GroupResult(name="throughput", label=label, noise_seeds=[], metrics=metrics, files=[])
        notes = ["Timed anew each time; what models cost side by side, attngraft compare measures."]
        return [group], notes, environment(bench.accelerator.device, processes=bench.accelerator.num_processes)


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.parquet"


def _class_names(record: RunRecord) -> list[str]:
    found = record.facts.get("classes")
    return [str(name) for name in found] if isinstance(found, list) else []
