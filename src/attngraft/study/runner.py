"""Running a study: plan, estimate, train the remaining runs, and report.

All state of a study is in its folder, so it can be stopped at any moment and resumed with the same command:

    study.yaml  runs/<variant>/seed<k>/  cost.json  results.json  results.csv  plots/  report.html

With folds, a seed's folder contains one run per fold, fold<f>/. The folder also contains halving.json with successive
halving, split.csv with a random validation split or folds, suites.csv if runs are evaluated under suites, and examples.json
with images for the report. The executor decides where and how many runs are trained at a time; files do not depend on it.
"""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from attngraft.cache import DecodedCache, decoded_cache, decoded_removed
from attngraft.checksums import FILE as CHECKSUMS_FILE
from attngraft.counting import counts_shown
from attngraft.devices import accelerator_device
from attngraft.downloads import permitted_downloads
from attngraft.errors import AttngraftError, FolderError, TrainingError, UsageError
from attngraft.files import check_output, created, remove_leftovers, write_atomically
from attngraft.models.trust import trusting
from attngraft.report import PLOTS_FOLDER, write_report
from attngraft.results.examples import save_examples
from attngraft.results.halving import HALVING_FILE
from attngraft.results.storage import check_study_file, save_result, study_checksums, write_study_checksums
from attngraft.results.study import Cost, StudyResult
from attngraft.results.wording import plural
from attngraft.study.checks import (
    check_untrained,
    check_variants,
    refuse_counted_updates,
    refuse_other_recipes,
    refuse_other_variants,
    refuse_unsupported,
    with_first_round,
)
from attngraft.study.collect import collect
from attngraft.study.config import STUDY_FILE, StudyConfig, read_study_file, study_from_dict
from attngraft.study.cost import COST_FILE, load_costs, measure_costs, save_costs
from attngraft.study.example_images import example_images
from attngraft.study.executors import Automatic, Ray
from attngraft.study.executors.base import Executor, Outcome, Pool, RunTask, Serial, TrainRun
from attngraft.study.folds import each_fold
from attngraft.study.graft_sets import with_expanded_sets
from attngraft.study.halving import HalvingQueue, refuse_other_units
from attngraft.study.memory import memory_plan
from attngraft.study.plan import PlannedRun, Study, finished_runs, resolve_runs
from attngraft.study.progress import StudyLog, StudyProgress
from attngraft.study.suites import check_suites, evaluate_finished
from attngraft.study.throughput import (
    Estimate,
    choose_threads,
    expected_runs,
    fit_epochs,
    halving_plan,
    measure_throughput,
    trained_share,
)
from attngraft.study.tracking import track_result
from attngraft.study.until import UntilQueue, check_budget, planned_runs, until_plan
from attngraft.tasks.task import SPLIT_FILE
from attngraft.training.failures import is_out_of_memory
from attngraft.training.lock import locked
from attngraft.training.loop import train
from attngraft.training.paths import refuse_data_folder
from attngraft.training.profiler import BenchmarkBatch
from attngraft.training.progress import Progress
from attngraft.training.run_folder import RunFolder, runs_below
from attngraft.training.stopping import Interrupted
from attngraft.yaml_config import dump_yaml

log = logging.getLogger(__name__)

COST_SHARE = 0.1  #: fraction of a study's time for measuring costs
LEAST_COST_SECONDS = 10.0  #: for measuring costs, unless the time budget is short
COST_SECONDS = 120.0  #: maximum seconds for measuring costs


def open_data(study: Study) -> BenchmarkBatch:
    """Open the data, with the split of earlier runs, if any."""
    return BenchmarkBatch(study.baseline_recipe, folder=study.data_folder())


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Functions called by a study; replace them to use another trainer or skip measurements, for example."""

    train: TrainRun = train
    open_data: Callable[[Study], BenchmarkBatch] = open_data
    choose_threads: Callable[..., int] = choose_threads
    measure_throughput: Callable[[Study, BenchmarkBatch], Estimate] = measure_throughput
    measure_costs: Callable[..., dict[str, Cost]] = measure_costs
    evaluate_suites: Callable[..., list[str]] = evaluate_finished
    write_report: Callable[[StudyResult, Path], Path] = write_report


def compare(
    config: StudyConfig,
    *,
    executor: Executor | None = None,
    progress: StudyProgress | None = None,
    costs: bool = True,
    tools: Tools | None = None,
    trust_code: bool = False,
    cache: str = "auto",
) -> StudyResult:
    """Train every variant with every seed, and compare the variants.

    Finished runs are skipped, and unfinished runs are resumed. If a run fails, a note is added, the other runs are still
    trained, and `incomplete` returns True for the result. After Ctrl-C, repeat the call to resume.

    Args:
        config: from `study_from_dict`.
        executor: where runs are trained; None: sequentially in this process. `Processes(jobs=2)` trains several at a time,
            `Automatic()` as many as the cores allow if this is faster, `Ray()` uses a cluster.
        progress: callbacks; None: log plain lines.
        costs: whether to measure time, memory and multiply-adds of the variants on this machine.
        tools: replacements for the trainer, the report, ...
        trust_code: import a `module:` host named in a teacher's folder; hosts named in `config` are trusted.
        cache: decoded images that the runs share while they train: `auto`, `off`, or a size such as `4GB`. Does not change
            the results.

    Returns:
        The result, which is also written to the study's folder together with a report.

    Raises:
        UsageError: a variant does not fit the host, not even one epoch fits the time budget, or `cache` has another form.
            Nothing was trained or written.
        DataError, ConfigError: the data or the recipe cannot be used. Nothing was trained or written.
        TrainingError: the folder contains runs of another recipe or is in use by another process, or all runs failed.
        StorageError: the study's folder or a file in it cannot be written.
        KeyboardInterrupt: the study was interrupted.
    """
    progress, tools, executor = progress or StudyLog(), tools or Tools(), executor or Serial()
    if trust_code:
        tools = dataclasses.replace(tools, train=partial(tools.train, trust_code=True))
    if (permitted := permitted_downloads()) is not None:  # runs are trained in other processes
        tools = dataclasses.replace(tools, train=partial(tools.train, downloads=permitted))
    kept = _cache_for(executor, cache, config.out)
    hosts = config.host_names()
    with trusting(*hosts, every=trust_code):
        config = with_expanded_sets(config)
    refuse_unsupported(config)
    with (
        trusting(*hosts, every=trust_code),
        created(config.out),
        locked(config.out),
        counts_shown(progress.on_count),
    ):
        for folder in (config.out, config.out / PLOTS_FOLDER):
            remove_leftovers(folder, below=False)
        for run in runs_below(config.out):
            RunFolder(run).mend()
        _check_files(config.out)
        try:
            study, executor = _prepare(config, executor, progress, tools, kept)
            write_study(study)
            if study.until is None:  # with `until`, for each run that starts
                study.save_data_files(study.runs)
            with decoded_removed(config.out):
                train_run = _with_cache(tools.train, study, kept)
                notes = train_runs(study, executor=executor, train_run=train_run, progress=progress)
            if not any(finished_runs(study).values()):
                first = f"; the first: {notes[0]}" if notes else ""
                raise TrainingError(f"every run of the study in {study.out} failed{first}")
            if study.suites:
                notes += tools.evaluate_suites(study, progress=progress)
            measured = _costs(study, notes, progress, tools) if costs else None
            progress.on_stage("writing the report")
            result = _report(study, measured, notes, tools)
            if trackers := study.baseline_recipe.train.track:
                progress.on_stage(f"sending the summary to {', '.join(trackers)}")
                track_result(trackers, result, study)
            return result
        finally:
            progress.on_end()


def report_only(config: StudyConfig, *, tools: Tools | None = None) -> StudyResult:
    """Rewrite the results and the report from finished runs, without training or measuring.

    Raises:
        TrainingError: no run is finished, or a run's graft or host differs from its variant's.
        FolderError: `until` started with other seeds.
    """
    config = with_expanded_sets(config, build=False)
    refuse_other_variants(config)
    path = config.out / STUDY_FILE
    check_study_file(path, remedy="if you edited it, rerun attngraft compare without --report-only")
    check_study_file(config.out / SPLIT_FILE, remedy="copy that of a finished run")
    _check_files(config.out)
    if path.is_file():
        config = with_first_round(config, study_from_dict(read_study_file(path), source=str(path)))
    costs = load_costs(config.out, _without_stopped(config))
    return _report(config, costs, [], tools or Tools())


def _check_files(out: Path) -> None:
    """Check the files of a finished study that are read again; damaged costs are removed, and measured again.

    Raises:
        ConfigError: the decisions of halving are damaged.
    """
    check_study_file(out / HALVING_FILE, remedy="delete the file to repeat the decisions")
    if damage := study_checksums(out).damage(out / COST_FILE):
        log.warning("%s: damaged (%s); removed", out / COST_FILE, damage)
        (out / COST_FILE).unlink(missing_ok=True)


def prepare(
    config: StudyConfig,
    *,
    executor: Executor | None = None,
    progress: StudyProgress | None = None,
    tools: Tools | None = None,
    trust_code: bool = False,
    cache: str = "auto",
) -> Study:
    """Check the study, open its data, estimate its time, and fit its epochs to the time budget.

    Does not train or write anything. For the arguments, see `compare`.

    Raises:
        See `compare`.
    """
    check_output(config.out, folder=True)
    executor, progress = executor or Serial(), progress or StudyLog()
    kept = _cache_for(executor, cache, config.out)
    with trusting(*config.host_names(), every=trust_code), counts_shown(progress.on_count):
        config = with_expanded_sets(config)
        refuse_unsupported(config)
        return _prepare(config, executor, progress, tools or Tools(), kept)[0]


def _cache_for(executor: Executor, option: str, out: Path) -> DecodedCache | None:
    """Return the cache of decoded examples in the study's folder, for runs on this machine."""
    kept = decoded_cache(option, out, shared=True)
    if isinstance(executor, Ray):
        if option not in ("auto", "off"):
            raise UsageError(f"--cache {option}: runs on a Ray cluster do not share decoded images; remove it")
        return None
    return kept


def _with_cache(train_run: TrainRun, study: Study, cache: DecodedCache | None) -> TrainRun:
    """Return `train_run` with the study's cache, if the task has decoded examples to cache."""
    total = 0 if study.benchmark is None else study.benchmark.data.decoded_bytes
    if total == 0:
        return train_run
    used: DecodedCache | str = "off" if cache is None or not cache.room(total) else cache
    return partial(train_run, cache=used)


def _prepare(
    config: StudyConfig, executor: Executor, progress: StudyProgress, tools: Tools, cache: DecodedCache | None
) -> tuple[Study, Executor]:
    """Return the checked study, with its opened data and its estimate, and the executor of its runs."""
    refuse_data_folder(config.out, config.data)
    if RunFolder(config.out).recipe.is_file() and not (config.out / STUDY_FILE).is_file():
        raise FolderError(f"{config.out}: is the folder of a run; choose another folder for the study")
    study = resolve_runs(_with_fitted_values(config))
    refuse_counted_updates(study)
    progress.on_stage("checking the variants")
    check_suites(study, None)
    check_variants(study)
    fit = study.time_budget is not None and study.fitted_epochs is None
    if not fit:
        refuse_other_recipes(study)
    benchmark, seconds, most_seconds, placed, memory = None, None, None, "", ""
    planned = planned_runs(study)
    if fit or any(run.state != "finished" for run in planned):
        progress.on_stage("opening the data")
        benchmark = tools.open_data(study)
        check_suites(study, benchmark)
        trains = all(run.recipe.schedule.trains for run in study.runs)
        if not trains:
            check_untrained(study, benchmark.data)
        counted = any(run.recipe.counts_updates for run in study.runs) or not trains
        if not counted:
            progress.on_stage("timing a few steps of every variant")
        try:
            if (study.halving is not None or study.until is not None) and benchmark is not None:
                refuse_other_units(study, benchmark)
            if trains and _chooses_threads(study):
                threads = tools.choose_threads(study, benchmark, executor.concurrency)
                study = resolve_runs(dataclasses.replace(study, fitted_threads=threads))
                planned = _same_runs(study, planned)
            estimate = None if counted else tools.measure_throughput(study, benchmark)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            estimate = None  # the run will report the error
            log.warning("the time cannot be estimated, because a variant does not fit into memory")
        if isinstance(executor, Automatic):
            alone = study.time_budget or (0.0 if estimate is None else estimate.seconds(expected_runs(study, planned)))
            # halving's decisions depend on the order in which concurrent runs finish
            left = 1 if study.halving is not None else sum(run.state != "finished" for run in planned)
            executor = executor.chosen(study.baseline_recipe, runs=left, seconds=alone)
        concurrency = executor.concurrency(study.baseline_recipe)
        placed = _describe_placement(study, concurrency)
        memory = "" if benchmark is None else memory_plan(study, benchmark, concurrency=concurrency)
        check_budget(study, estimate, concurrency=concurrency)
        if fit:
            study = _fitted(study, estimate, concurrency=concurrency)
            refuse_other_recipes(study)
            planned = _same_runs(study, planned)
        if estimate is not None:
            seconds = estimate.seconds(expected_runs(study, planned)) / concurrency
            most_seconds = None if study.until is None else estimate.seconds(study.runs) / concurrency
    study = dataclasses.replace(
        study, benchmark=benchmark, planned=tuple(planned), seconds=seconds, most_seconds=most_seconds
    )
    counted = any(run.recipe.counts_updates for run in study.runs)
    epochs = math.nan if counted else sum(run.epochs_left for run in expected_runs(study, planned))
    kept = "" if cache is None or benchmark is None else cache.note(benchmark.data.decoded_bytes)
    extra = "; ".join(filter(None, (halving_plan(study), placed, memory, kept, until_plan(study))))
    progress.on_plan(planned, seconds=seconds, epochs=epochs, extra=extra)
    return study, executor


def _same_runs(study: Study, runs: Sequence[PlannedRun]) -> Sequence[PlannedRun]:
    """Return `runs` as planned by `study`, whose recipes may have changed."""
    labels = {run.label for run in runs}
    return [run for run in study.runs if run.label in labels]


def _with_fitted_values(config: StudyConfig) -> StudyConfig:
    """Return `config` with the epochs and threads that were fitted when this study started, if any.

    Raises:
        FolderError: see `with_first_round`.
    """
    path = config.out / STUDY_FILE
    if not path.is_file():
        return dataclasses.replace(config, first_round=None)
    before = study_from_dict(read_study_file(path), source=str(path))
    config = with_first_round(config, before)
    if config.fitted_threads is None:
        config = dataclasses.replace(config, fitted_threads=before.fitted_threads)
    same_budget = (before.time_budget, before.epochs) == (config.time_budget, config.epochs)
    if config.fitted_epochs is None and config.time_budget is not None and same_budget:
        config = dataclasses.replace(config, fitted_epochs=before.fitted_epochs)
    return config


def _chooses_threads(study: Study) -> bool:
    """Return whether the number of CPU threads is still open: not set, not on an accelerator, and no run saved."""
    given = study.baseline_recipe.train.threads is not None
    return not given and accelerator_device() is None and study.data_folder() is None


def _describe_placement(study: Study, concurrency: int) -> str:
    """Describe how many runs are trained at a time, with how many threads, where this was chosen for the user."""
    threads = study.baseline_recipe.train.threads
    if threads is None or (study.fitted_threads is None and concurrency == 1):
        return ""
    return f"{'one' if concurrency == 1 else concurrency} at a time, with {plural(threads, 'CPU thread')} each"


def _fitted(study: Study, estimate: Estimate | None, *, concurrency: int) -> Study:
    """Return the study with as many epochs as its time budget allows, given the time that halving saves."""
    if estimate is None or study.time_budget is None:
        raise UsageError("--time-budget requires a time estimate, which failed; use --epochs instead")
    budget = (study.time_budget - _cost_limit(study)) * concurrency
    epochs = fit_epochs(estimate, study.runs, budget=budget, most=study.epochs, share=trained_share(study))
    return resolve_runs(dataclasses.replace(study, fitted_epochs=epochs))


def write_study(config: StudyConfig) -> None:
    """Write study.yaml, from which the study can be repeated or resumed."""
    (config.out / CHECKSUMS_FILE).unlink(missing_ok=True)  # files change from here on
    write_atomically(config.out / STUDY_FILE, dump_yaml(config.to_dict()))


# --- training ---------------------------------------------------------------------------------------------------------


class RunQueue:
    """Queue of tasks that train all runs to completion, in the order of the plan."""

    def __init__(self, study: Study) -> None:
        self._waiting = [run for run in study.runs if run.state != "finished"]
        self._active: list[PlannedRun] = []

    def next(self) -> RunTask | None:
        """Return the next task to start; None if no task is ready."""
        if not self._waiting:
            return None
        self._active.append(self._waiting.pop(0))
        return RunTask(run=self._active[-1])

    def done(self, task: RunTask, outcome: Outcome) -> None:
        """Update the queue with the outcome of one of its tasks."""
        self._active.remove(task.run)

    def seed_is_open(self, seed: int) -> bool:
        """Return whether runs of `seed` are waiting or active."""
        return any(run.seed == seed for run in [*self._waiting, *self._active])


Queue = RunQueue | HalvingQueue | UntilQueue


def train_runs(study: Study, *, executor: Executor, train_run: TrainRun, progress: StudyProgress) -> list[str]:
    """Train all remaining runs, and return notes on runs that failed and on processes that died.

    Raises:
        Interrupted: Ctrl-C or SIGTERM was received; all runs are saved.
    """
    queue = _queue(study, concurrency=executor.concurrency(study.baseline_recipe))
    first = queue.next()
    if first is None:
        return []
    try:
        with executor.pool(train_run=train_run, recipe=study.baseline_recipe, out=study.out) as pool:
            return _Scheduler(study, queue, pool, progress, retries=executor.retries).run(first)
    except KeyboardInterrupt as stop:
        raise Interrupted(
            f"the study in {study.out} was stopped and everything is kept: rerun the same command to resume, or run "
            f"`attngraft compare --report-only --out {study.out}` to report on finished runs"
        ) from stop


def _queue(study: Study, *, concurrency: int) -> Queue:
    if study.halving is not None:
        return HalvingQueue(study, study.halving)
    return RunQueue(study) if study.until is None else UntilQueue(study, study.until, concurrency=concurrency)


class _Scheduler:
    """Submit the tasks of a queue to a pool of workers, and resume runs whose process died."""

    def __init__(self, config: StudyConfig, queue: Queue, pool: Pool, progress: StudyProgress, *, retries: int) -> None:
        self._queue, self._pool, self._progress, self._retries = queue, pool, progress, retries
        self._active: dict[str, tuple[RunTask, Progress]] = {}  # by label
        self._deaths: dict[str, list[str]] = {}  # label of an active run -> how each of its processes ended
        self._notes: list[str] = []
        self._interim = _InterimResults(config, queue, self._notes)

    def run(self, first: RunTask) -> list[str]:
        """Run all tasks of the queue, starting with `first`, and return the notes."""
        task: RunTask | None = first
        try:
            while True:
                while task is not None:
                    label, run_progress = task.run.label, self._progress.on_run(task.run)
                    self._active[label], self._deaths[label] = (task, run_progress), []
                    self._pool.submit(task, run_progress)
                    task = self._next()
                if not self._active:
                    return self._notes
                for ended, outcome in self._pool.wait():
                    self._handle(ended, outcome)
                task = self._next()
        except KeyboardInterrupt:
            self._pool.stop()
            for stopped, _ in self._active.values():
                self._progress.on_run_end(stopped.run, "stopped", "")
            raise

    def _next(self) -> RunTask | None:
        return self._queue.next() if len(self._active) < self._pool.slots else None

    def _handle(self, task: RunTask, outcome: Outcome) -> None:
        label, notes = task.run.label, self._notes
        deaths = self._deaths[label]
        if outcome.kind == "stopped":  # an interrupted run stops the study
            raise KeyboardInterrupt
        if outcome.kind == "lost":
            deaths.append(outcome.message)
            if len(deaths) <= self._retries:
                log.warning("%s: its process %s; resuming from the last checkpoint", label, deaths[-1])
                self._pool.submit(*self._active[label])
                return
            reason = f"its process {deaths[-1]}, {len(deaths)} times in all; rerun the same command to retry"
            outcome = Outcome(kind="failed", message=reason)
        del self._active[label]
        self._progress.on_run_end(task.run, outcome.kind, outcome.message)
        if outcome.kind == "failed":
            notes.append(f"{label} failed: {outcome.message}")
        elif deaths:
            times = "" if len(deaths) == 1 else f", {len(deaths)} times in all"
            notes.append(f"{label}: its process {deaths[-1]}{times}; it was resumed from its last checkpoint.")
        self._queue.done(task, outcome)
        self._interim.update()


class _InterimResults:
    """Write interim results after each finished seed, using at most about 1/20 of the study's time."""

    def __init__(self, config: StudyConfig, queue: Queue, notes: list[str]) -> None:
        self._config, self._queue, self._notes = config, queue, notes
        self._open = {seed for seed in config.all_seeds if queue.seed_is_open(seed)}
        self._not_before = 0.0

    def update(self) -> None:
        over = {seed for seed in self._open if not self._queue.seed_is_open(seed)}
        self._open -= over
        begin = time.monotonic()
        if not over or not self._open or begin < self._not_before:
            return
        try:
            save_result(collect(self._config, notes=self._notes), self._config.out)
        except AttngraftError as error:
            log.warning("interim results were not written: %s", error)
        end = time.monotonic()
        self._not_before = end + 20 * (end - begin)


# --- costs and report -------------------------------------------------------------------------------------------------


def _cost_limit(study: Study) -> float:
    """Return the maximum seconds for measuring costs."""
    return COST_SECONDS if study.time_budget is None else min(COST_SECONDS, COST_SHARE * study.time_budget)


def _cost_seconds(study: Study) -> float:
    """Return the time for measuring costs in seconds, a share of the time budget or else of the estimated time."""
    limit = _cost_limit(study)
    if study.time_budget is not None or study.seconds is None:
        return limit
    return min(limit, max(LEAST_COST_SECONDS, COST_SHARE * study.seconds))


def _costs(study: Study, notes: list[str], progress: StudyProgress, tools: Tools) -> dict[str, Cost] | None:
    """Load or measure the costs. If measuring fails, add a note and return None."""
    try:
        measured = resolve_runs(_with_chosen_batches(_without_stopped(study), study))
        costs = load_costs(study.out, measured, recipe=measured.baseline_recipe)
        if costs is not None:
            return costs
        progress.on_stage("measuring the costs of each variant")
        benchmark = (
            study.benchmark if measured.overrides == study.overrides else None
        )  # only if its batch sizes are unchanged
        opened, seconds, limit = benchmark or tools.open_data(measured), _cost_seconds(study), _cost_limit(study)
        costs = tools.measure_costs(measured, opened, seconds=seconds, limit=limit)
    except (AttngraftError, RuntimeError, OSError) as error:
        notes.append(f"Measuring the costs failed: {error}")
        return None
    save_costs(study.out, measured.baseline_recipe, costs)
    return costs


def _with_chosen_batches(config: StudyConfig, study: Study) -> StudyConfig:
    """Return `config` with the smallest micro-batches that `auto_batch` chose in finished runs."""
    train = study.baseline_recipe.train
    if not train.auto_batch:
        return config
    own = {variant.name for variant in config.variants if variant.sets("train.accumulate")}
    finished = [run for name, runs in finished_runs(config).items() if name not in own for run in runs.values()]
    chosen = max((run.recipe.train.accumulate for run in each_fold(finished)), default=train.accumulate)
    if chosen == train.accumulate:
        return config
    return dataclasses.replace(config, overrides=(*config.overrides, f"train.accumulate={chosen}"))


def _without_stopped(config: StudyConfig) -> StudyConfig:
    """With halving, drop variants without finished runs, whose costs are not needed."""
    if config.halving is None:
        return config
    finished = finished_runs(config)
    kept = tuple(variant for variant in config.variants if variant.is_baseline or finished[variant.name])
    return dataclasses.replace(config, variants=kept)


def _report(config: StudyConfig, costs: dict[str, Cost] | None, notes: Sequence[str], tools: Tools) -> StudyResult:
    result = dataclasses.replace(collect(config, costs=costs, notes=notes), folder=config.out)
    save_result(result, config.out)
    save_examples(example_images(config, result), config.out)
    tools.write_report(result, config.out)
    write_study_checksums(config.out)
    return result
