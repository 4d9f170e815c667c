"""Evaluation of a model under suites, reusing the predictions of finished conditions.

    RUN/evaluation/<weights>/<suite>/<condition>.parquet  predictions, one file per condition and noise seed
                                     results.json, results.csv, checksums.json
                                     reliability.svg, reliability.png    (calibration)

For a model that is not a run, the suite's folder is OUT/<suite>. For any data other than the run's full validation split,
the folder is named `<suite>--<data>`. A condition is finished if its file was computed from the same weights, data and
settings.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from attngraft._version import __version__
from attngraft.checksums import FILE as CHECKSUMS_FILE
from attngraft.counting import counts_shown
from attngraft.environment import environment
from attngraft.errors import AttngraftError, started
from attngraft.evaluation.suites.cache import (
    CachedPredictions,
    Fingerprint,
    cache_predictions,
    read_cached,
    read_columns,
    remove_damaged,
    require_pyarrow,
    write_suite_checksums,
)
from attngraft.evaluation.suites.catalog import SuiteChoice, require_suites
from attngraft.evaluation.suites.conditions import ConditionEvaluator, TargetModel
from attngraft.evaluation.suites.context import EvaluationContext, open_context
from attngraft.evaluation.suites.progress import SuiteLog, SuiteProgress
from attngraft.evaluation.suites.result import (
    FAILURES,
    RESULT_FILE,
    GroupResult,
    SuiteRun,
    SuitesFailed,
    calibration_results,
    group_results,
    save_suite_run,
)
from attngraft.evaluation.suites.throughput import measure_throughput
from attngraft.models.trust import from_folder
from attngraft.opening import DAMAGE
from attngraft.results.measured import same_metric
from attngraft.results.records import RecordTable
from attngraft.suggest import one_line
from attngraft.tasks.suites import Condition, UnsupportedCondition
from attngraft.tasks.task import load_task
from attngraft.training.evaluate import Weights, run_target
from attngraft.training.run_folder import read_run
from attngraft.training.setup import create_accelerator
from attngraft.training.stopping import Interrupted, StopSignal
from attngraft.training.target import Target

log = logging.getLogger(__name__)

FORMAT = 2  #: version of the fingerprints; increment it when the meaning of a setting changes


def evaluate_suites(
    of: Path | str | Target,
    choices: Sequence[SuiteChoice],
    *,
    data: str | None = None,
    split: str | None = None,
    weights: Weights = "last",
    limit: int | None = None,
    progress: SuiteProgress | None = None,
    trust_code: bool = False,
    allow_download: bool = False,
) -> list[SuiteRun]:
    """Evaluate a model under suites, reusing finished conditions.

        evaluate_suites("runs/flowers", parse_suites(["robustness", "calibration"]))

    Args:
        of: the run's folder, or another model (`targets.judged.open_target`).
        choices: from `parse_suites`.
        data: other data of the same kind, or the downloaded test sets; None: the run's data.
        split: name of another split of the data.
        weights: which weights of a run to evaluate: the last or best epoch's, or a moving average.
        limit: maximum number of examples, evenly spaced.
        progress: progress callbacks; None: log messages.
        trust_code: import a `module:` host named in the folder; this runs its code.
        allow_download: download what the folder names (a host of the Hub, a data set) and is not in the caches.

    Returns:
        The results in the order of the suites; they are also written to the target's folder.

    Raises:
        FolderError: the folder is not a run, or the weights do not exist.
        UsageError: pyarrow is not installed.
        DataError: see `open_context`; nothing was evaluated.
        ConfigError: the task does not support a suite; nothing was evaluated.
        SuitesFailed: some of several suites failed, and the others were evaluated. If only one suite was requested, its
            error is raised unchanged.
        Interrupted: Ctrl-C was pressed. Finished conditions are kept; repeat the call to resume.
    """
    require_pyarrow()
    target = of if isinstance(of, Target) else run_target(read_run(of), weights)
    require_suites(load_task(target.recipe.task["name"]), choices)
    contexts: dict[tuple[str | None, str], EvaluationContext] = {}
    progress = progress or SuiteLog()
    typed = [target.name, data, *(choice.data for choice in choices)]
    with from_folder(*typed, trust_code=trust_code, allow_download=allow_download):
        with counts_shown(progress.on_count):
            for choice in choices:
                key = (choice.data, choice.suite.test_set)
                if key not in contexts:
                    contexts[key] = open_context(target, choice, data=data, split=split, limit=limit)
        evaluator = _TargetEvaluator(target, progress)
        with StopSignal(evaluator.model.accelerator) as stop:
            return evaluator.suites(
                [(choice, contexts[choice.data, choice.suite.test_set]) for choice in choices], stop
            )


class _TargetEvaluator:
    """Evaluate one model under suites."""

    def __init__(self, target: Target, progress: SuiteProgress) -> None:
        self.target, self.progress = target, progress
        self.checkpoint = target.digest()
        self.model = TargetModel(target, create_accelerator(target.recipe))
        self.root = target.results

    def suites(self, requested: Sequence[tuple[SuiteChoice, EvaluationContext]], stop: StopSignal) -> list[SuiteRun]:
        """Evaluate each suite, continuing after failures.

        Raises:
            SuitesFailed: some of several suites failed. With a single suite, its error is raised unchanged; likewise with
                several processes, which cannot continue with the next suite when one of them fails.
            Interrupted: `stop` was set.
        """
        results: list[SuiteRun] = []
        failed: dict[str, str] = {}
        for choice, context in requested:
            try:
                with started():
                    results.append(self.suite(choice, context, stop))
            except FAILURES as error:
                if len(requested) == 1 or self.model.accelerator.num_processes > 1:
                    raise
                log.debug("suite %s failed", choice.text, exc_info=True)
                self.progress.on_failure(choice.suite.title, str(error))
                failed[choice.text] = str(error)  # as text: the error would keep its frames' tensors alive
        if failed:
            raise SuitesFailed(results, failed)
        return results

    def suite(self, choice: SuiteChoice, context: EvaluationContext, stop: StopSignal) -> SuiteRun:
        """Evaluate one suite, write its results, and return them.

        Raises:
            Interrupted: `stop` was set.
        """
        suite, task, accelerator = choice.suite, context.task, self.model.accelerator
        metric, higher = (context.metric, True) if context.metric else (task.primary, task.higher_is_better)
        notes: list[str] = []
        machine: dict[str, Any] = {}
        bins = None
        if suite.kind == "throughput":
            metric, higher = "images_per_second", True
            groups = [self._throughput(context)]
            notes = ["Measured anew each time; attngraft compare measures the costs of models side by side."]
            machine = environment(accelerator.device, processes=accelerator.num_processes)
        else:
            folder = self._folder(suite.folder, context)
            cached, refused = self._evaluate(choice, context, folder, stop)
            accelerator.wait_for_everyone()  # until the main process has written the predictions
            if suite.kind == "calibration":
                groups, bins = calibration_results(folder, suite.conditions[0], task, root=self.root)
                metric, higher = "ece", False
            else:
                groups = group_results(suite.conditions, cached, refused, folder, root=self.root)
        classes = context.facts.get("classes")
        result = SuiteRun(
            suite=suite.name,
            title=suite.title,
            run=self.target.name,
            weights=self.target.weights,
            checkpoint=self.checkpoint,
            data=context.source,
            examples=len(context.split),
            metric=metric,
            higher_is_better=higher,
            groups=groups,
            classes=[str(name) for name in classes] if isinstance(classes, list) else [],
            notes=[*context.notes, *notes],
            reliability=bins,
            machine=machine,
            version=__version__,
            digest=context.digest,
        )
        if accelerator.is_main_process:
            folder = self._folder(suite.name, context)
            save_suite_run(result, folder)
            write_suite_checksums(folder, RESULT_FILE)
        return result

    def _folder(self, name: str, context: EvaluationContext) -> Path:
        return self.root / self.target.subfolder / (f"{name}--{context.slug}" if context.slug else name)

    def _evaluate(
        self, choice: SuiteChoice, context: EvaluationContext, folder: Path, stop: StopSignal
    ) -> tuple[dict[str, CachedPredictions], dict[str, str]]:
        """Return the predictions for each condition, and the reason for each group without predictions."""
        suite, progress, accelerator = choice.suite, self.progress, self.model.accelerator
        fingerprints = {each.name: self._fingerprint(each, context) for each in suite.conditions}
        if accelerator.is_main_process:
            remove_damaged(folder)
        accelerator.wait_for_everyone()
        read = {name: self._read(folder / f"{name}.parquet", each, context) for name, each in fingerprints.items()}
        cached = {name: each for name, each in read.items() if each is not None}
        accelerator.wait_for_everyone()  # every process must read the files before the main process rewrites them
        if accelerator.is_main_process and len(cached) < len(fingerprints):
            (folder / CHECKSUMS_FILE).unlink(missing_ok=True)  # they are of the files before
        progress.on_suite(suite.title, conditions=len(fingerprints), done=len(cached), examples=len(context.split))
        refused: dict[str, str] = {}
        evaluate = ConditionEvaluator(self.model, context, suite.conditions, progress=progress)
        try:
            for condition in suite.conditions:
                if condition.name in cached or condition.group in refused:
                    continue
                progress.on_condition(condition.label)
                try:
                    evaluation = evaluate(condition, stop)
                except UnsupportedCondition as error:
                    refused[condition.group] = str(error)
                    progress.on_outcome(condition.label, f"no result: {error}")
                    continue
                if evaluation is None:
                    raise Interrupted(
                        f"{suite.title}: {len(cached)} of {len(fingerprints)} conditions are finished in {folder}; rerun "
                        "the same command to resume"
                    )
                cached[condition.name] = cache_predictions(
                    folder / f"{condition.name}.parquet",
                    evaluation,
                    context.support.columns,
                    noise_seed=condition.noise_seed,
                    fingerprint=fingerprints[condition.name],
                    remarks=evaluate.remarks,
                    write=accelerator.is_main_process,
                )
                metric, value = next(iter(evaluation.metrics.items()))
                seed = "" if condition.noise_seed is None else f" (noise seed {condition.noise_seed})"
                progress.on_outcome(condition.label + seed, f"{metric} {value:.4g}")
        finally:
            evaluate.close()
        if accelerator.is_main_process:
            write_suite_checksums(folder, RESULT_FILE)
        return cached, refused

    def _read(self, path: Path, fingerprint: Fingerprint, context: EvaluationContext) -> CachedPredictions | None:
        """Return the metadata of a file; None if it cannot be used, or if its columns give other metrics."""
        cached = read_cached(path, fingerprint=fingerprint)
        if cached is None:
            return None
        task = context.task
        try:
            columns = read_columns(path, only=(*context.support.columns, "score"))
            broken = task.column_rules.broken(columns)
        except (AttngraftError, *DAMAGE) as error:
            columns, broken = {}, one_line(error)
        found: dict[str, float] = {}
        if context.score is None:
            with suppress(AttngraftError, *DAMAGE):  # the columns may be fewer than the metrics need
                table = RecordTable(names=np.arange(cached.examples), columns=columns)
                found |= task.measure(table, context.facts).values
        if "score" in columns:
            found[context.metric or task.primary] = float(columns["score"].mean())
        for name, value in found.items():
            if name in cached.metrics and not same_metric(value, cached.metrics[name]):
                broken = f"{name} is {value:.6g}, recorded as {cached.metrics[name]:.6g}"
        if broken:
            log.warning("%s: %s; it is made again", path, broken)
        return None if broken else cached

    def _fingerprint(self, condition: Condition, context: EvaluationContext) -> Fingerprint:
        recipe = self.target.recipe
        return {
            "format": FORMAT,
            "checkpoint": self.checkpoint,
            "weights": self.target.weights,
            "data": context.digest,
            "examples": len(context.split),
            "condition": {"name": condition.name, "noise_seed": condition.noise_seed, **condition.settings},
            "answers": context.answers,
            "task": {name: value for name, value in recipe.task.items() if name != "data"},
            "precision": recipe.train.amp,
        }

    def _throughput(self, context: EvaluationContext) -> GroupResult:
        self.progress.on_suite("Throughput", conditions=1, done=0, examples=len(context.split))
        self.progress.on_condition("timing batches")
        metrics, size = measure_throughput(context, self.model.prepared, self.target.recipe, self.model.accelerator)
        label = f"batches of {size}"
        self.progress.on_outcome(label, f"{metrics['images_per_second'].mean:.4g} images per second")
        return GroupResult(name="throughput", label=label, noise_seeds=[], metrics=metrics, files=[])
