"""The study itself: plan, estimate, run what is left, report.

Everything that a study knows is in its folder, so it can be stopped at any moment and goes on with the same command:

    study.yaml  runs/<variant>/seed<k>/  cost.json  results.json  results.csv  plots/  report.html

and halving.json, where runs are stopped early, split.csv, where the validation part was drawn, and suites.csv, where runs
are evaluated under suites. Who carries the runs
out, and how many at a time, is up to an executor and changes nothing that is written there.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngraft.errors import AttngraftError, TrainingError, UsageError
from attngraft.files import remove_leftovers, write_atomically, writing
from attngraft.results.storage import save_result
from attngraft.results.study import Cost, StudyResult
from attngraft.study.collect import collect, finished_runs
from attngraft.study.config import STUDY_FILE, StudyConfig, read_study, study_from_dict
from attngraft.study.executors.serial import Serial
from attngraft.study.expectation import expected, how, share_of
from attngraft.study.progress import StudyLog, StudyProgress
from attngraft.study.running import run_all
from attngraft.study.schedule import PlannedRun, check_variants, plan_runs, refuse_other_recipes, refuse_other_variants
from attngraft.study.splits import keep_split, kept_split

if TYPE_CHECKING:
    from attngraft.study.estimate import Estimate
    from attngraft.study.executors.work import Executor
    from attngraft.training.profiler import BenchmarkBatch
    from attngraft.training.run_folder import RunRecord

log = logging.getLogger(__name__)

COST_SHARE = 0.1  #: of a time budget, for measuring costs
COST_SECONDS = 120.0  #: the most that measuring costs may take


def _train(*args: Any, **kwargs: Any) -> RunRecord:
    from attngraft.training.loop import train

    return train(*args, **kwargs)


def _open_data(config: StudyConfig) -> BenchmarkBatch:
    from attngraft.training.profiler import load_benchmark_batch

    return load_benchmark_batch(config.recipe_of(config.baseline, config.seeds[0]), split=kept_split(config))


def _measure_paces(config: StudyConfig, benchmark: BenchmarkBatch) -> Estimate:
    from attngraft.study.estimate import measure_paces

    return measure_paces(config, benchmark)


def _measure_costs(config: StudyConfig, benchmark: BenchmarkBatch, *, limit: float) -> dict[str, Cost]:
    from attngraft.study.cost import measure_costs

    return measure_costs(config, benchmark, limit=limit)


def _evaluate_suites(config: StudyConfig, *, progress: StudyProgress) -> list[str]:
    from attngraft.study.suites import evaluate_finished

    return evaluate_finished(config, progress=progress)


def _write_report(result: StudyResult, folder: Path) -> Path:
    from attngraft.report import write_report

    return write_report(result, folder)


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What a study leaves to others. The defaults are the package's own; another trainer may be put in their place."""

    train: Callable[..., RunRecord] = _train
    open_data: Callable[[StudyConfig], BenchmarkBatch] = _open_data
    measure_paces: Callable[[StudyConfig, BenchmarkBatch], Estimate] = _measure_paces
    measure_costs: Callable[..., dict[str, Cost]] = _measure_costs
    evaluate_suites: Callable[..., list[str]] = _evaluate_suites
    write_report: Callable[[StudyResult, Path], Path] = _write_report


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A study that is checked and planned."""

    config: StudyConfig  #: with the epochs that a time budget allows
    runs: Sequence[PlannedRun]
    benchmark: BenchmarkBatch | None  #: opened data; None where every run is finished
    seconds: float | None  #: the estimate for what is left


def compare(
    config: StudyConfig,
    *,
    executor: Executor | None = None,
    progress: StudyProgress | None = None,
    costs: bool = True,
    tools: Tools | None = None,
) -> StudyResult:
    """Train every variant with every seed, as far as that is not done yet, and compare them.

    Runs that are finished are kept, unfinished ones go on. A run that fails is noted, and the others still run;
    `incomplete` says afterwards whether any is missing. Ctrl-C keeps everything; the same call goes on.

    Args:
        config: from `study_from_dict`.
        executor: who carries the runs out; None: this process, one after the other. `Processes(jobs=2)` makes several at
            a time, `Ray()` hands them to a cluster.
        progress: who is told; None logs plain lines.
        costs: measure time, memory and multiply-adds of the variants on this machine.
        tools: another trainer or report.

    Returns:
        The result, which is also written into the study's folder, with its report.

    Raises:
        UsageError: a variant does not fit the host, or not even one epoch fits the time budget. Nothing was trained.
        DataError, ConfigError: the data or the recipe cannot be used. Nothing was trained.
        TrainingError: the folder holds runs of another recipe, another process is at work there, or all runs failed.
        StorageError: the study's folder, or a file in it, cannot be written.
        KeyboardInterrupt: the study was stopped.
    """
    progress, tools, executor = progress or StudyLog(), tools or Tools(), executor or Serial()
    with writing(config.out):
        config.out.mkdir(parents=True, exist_ok=True)
    from attngraft.report import PLOTS_FOLDER
    from attngraft.training.lock import locked

    with locked(config.out):
        for place in (config.out, config.out / PLOTS_FOLDER):
            remove_leftovers(place, below=False)
        try:
            prepared = prepare(config, executor=executor, progress=progress, tools=tools)
            write_study(prepared.config)
            if prepared.benchmark is not None:
                keep_split(prepared.config, prepared.benchmark.task)
            notes = run_all(prepared.config, prepared.runs, executor=executor, train=tools.train, progress=progress)
            if not any(finished_runs(prepared.config).values()):
                first = f"; the first: {notes[0]}" if notes else ""
                raise TrainingError(f"every run of the study in {config.out} failed{first}")
            if config.suites:
                notes += tools.evaluate_suites(prepared.config, progress=progress)
            measured = _costs(prepared, notes, progress, tools) if costs else None
            progress.on_stage("writing the report")
            return _report(prepared.config, measured, notes, tools)
        finally:
            progress.on_end()


def report_only(config: StudyConfig, *, tools: Tools | None = None) -> StudyResult:
    """Make results and report anew from the runs that are finished; nothing is trained or measured.

    Raises:
        TrainingError: no run is finished, or a run is of another graft or host than the variant whose name it bears.
    """
    from attngraft.study.cost import load_costs

    refuse_other_variants(config)
    costs = load_costs(config.out, _of_interest(config), same_recipe=False)
    return _report(config, costs, [], tools or Tools())


def prepare(
    config: StudyConfig,
    *,
    executor: Executor | None = None,
    progress: StudyProgress | None = None,
    tools: Tools | None = None,
) -> Prepared:
    """Check everything, estimate the time, and fit the epochs to the time budget. Trains and writes nothing.

    Raises:
        As `compare`, before anything is trained.
    """
    progress, tools, executor = progress or StudyLog(), tools or Tools(), executor or Serial()
    config = _continued(config)
    progress.on_stage("checking the variants")
    check_variants(config)
    runs = plan_runs(config)
    fits = config.time_budget is not None and config.fitted_epochs is None
    if not fits:
        refuse_other_recipes(runs)
    benchmark, seconds = None, None
    if fits or any(run.state != "finished" for run in runs):
        progress.on_stage("opening the data")
        benchmark = tools.open_data(config)
        progress.on_stage("timing a few steps of every variant")
        estimate = _estimate(config, benchmark, tools)
        at_once = executor.at_once(runs[0].recipe)
        if fits:
            config = _fitted(config, estimate, runs, at_once=at_once)
            runs = plan_runs(config)
            refuse_other_recipes(runs)
        seconds = None if estimate is None else estimate.seconds(expected(config, runs)) / at_once
    if config.suites:
        from attngraft.study.suites import check_suites

        check_suites(config, benchmark)
    epochs = sum(run.epochs_left for run in expected(config, runs))
    progress.on_plan(runs, seconds=seconds, epochs=epochs, how=how(config, runs))
    return Prepared(config=config, runs=runs, benchmark=benchmark, seconds=seconds)


def _estimate(config: StudyConfig, benchmark: BenchmarkBatch, tools: Tools) -> Estimate | None:
    """None where a variant does not fit into memory; its run will say so."""
    from attngraft.training.failures import is_out_of_memory

    try:
        return tools.measure_paces(config, benchmark)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        log.warning("no estimate of the time: a variant does not fit into memory")
        return None


def _fitted(config: StudyConfig, estimate: Estimate | None, runs: Sequence[PlannedRun], *, at_once: int) -> StudyConfig:
    """With the epochs that the time budget allows; halving leaves room for more."""
    from attngraft.study.estimate import fit_epochs

    if estimate is None or config.time_budget is None:
        raise UsageError("--time-budget needs an estimate, and there is none: give --epochs instead")
    budget = (config.time_budget - _cost_limit(config)) * at_once
    epochs = fit_epochs(estimate, runs, budget=budget, most=config.epochs, share=share_of(config, runs))
    return dataclasses.replace(config, fitted_epochs=epochs)


def incomplete(result: StudyResult) -> bool:
    """Whether some run of the study is missing from its result, apart from those that halving stopped."""
    stopped = {} if result.halving is None else result.halving.stopped
    return any(len(variant.runs) < len(result.seeds) for variant in result.variants if variant.name not in stopped)


def write_study(config: StudyConfig) -> None:
    """Write study.yaml, from which the study can be repeated or continued."""
    from attngraft.yaml_config import dump_yaml

    write_atomically(config.out / STUDY_FILE, dump_yaml(config.to_dict()))


def _continued(config: StudyConfig) -> StudyConfig:
    """With the epochs that were fitted when this study began, if it began with the same time budget."""
    path = config.out / STUDY_FILE
    if config.time_budget is None or config.fitted_epochs is not None or not path.is_file():
        return config
    before = study_from_dict(read_study(path), source=str(path))
    if (before.time_budget, before.epochs) != (config.time_budget, config.epochs):
        return config
    return dataclasses.replace(config, fitted_epochs=before.fitted_epochs)


def _cost_limit(config: StudyConfig) -> float:
    return COST_SECONDS if config.time_budget is None else min(COST_SECONDS, COST_SHARE * config.time_budget)


def _costs(prepared: Prepared, notes: list[str], progress: StudyProgress, tools: Tools) -> dict[str, Cost] | None:
    """The costs kept in the folder, or measured now. A failure to measure is noted and loses nothing."""
    from attngraft.study.cost import load_costs, save_costs

    planned = _of_interest(prepared.config)
    config = _as_it_ran(planned)
    kept = load_costs(config.out, config)
    if kept is not None:
        return kept
    progress.on_stage("measuring what each variant costs")
    try:
        benchmark = prepared.benchmark if config == planned else None  # which holds batches as they were planned
        measured = tools.measure_costs(config, benchmark or tools.open_data(config), limit=_cost_limit(config))
    except (AttngraftError, RuntimeError, OSError) as error:
        notes.append(f"Measuring the costs failed: {error}")
        return None
    save_costs(config.out, config, measured)
    return measured


def _as_it_ran(config: StudyConfig) -> StudyConfig:
    """The study with the smallest micro-batches that its runs chose for want of memory, if they might choose."""
    recipe = config.recipe_of(config.baseline, config.seeds[0])
    if not recipe.train.auto_batch:
        return config
    chosen = max(run.recipe.train.accumulate for runs in finished_runs(config).values() for run in runs.values())
    if chosen == recipe.train.accumulate:
        return config
    return dataclasses.replace(config, overrides=(*config.overrides, f"train.accumulate={chosen}"))


def _of_interest(config: StudyConfig) -> StudyConfig:
    """The study without the variants that were stopped early: their costs would be measured for nothing."""
    if config.halving is None:
        return config
    finished = finished_runs(config)
    kept = tuple(variant for variant in config.variants if variant.is_baseline or finished[variant.name])
    return dataclasses.replace(config, variants=kept)


def _report(config: StudyConfig, costs: dict[str, Cost] | None, notes: Sequence[str], tools: Tools) -> StudyResult:
    result = collect(config, costs=costs, notes=notes)
    save_result(result, config.out)
    tools.write_report(result, config.out)
    return result
