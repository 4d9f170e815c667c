"""Estimates from a few real steps: a study's time, the epochs that fit a time budget, the best number of threads."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from attngraft.counting import counted, format_duration
from attngraft.errors import UsageError
from attngraft.study.executors.placement import CONTENTION
from attngraft.study.plan import PlannedRun, Study
from attngraft.study.rungs import expected_share, rung_epochs
from attngraft.training.profiler import BenchmarkBatch, Profiler, synchronizer
from attngraft.training.recipe import Recipe
from attngraft.training.setup import cpu_threads

ROUNDS = 3  #: maximum number of timed steps per variant
LONG_ENOUGH = 0.2  #: seconds of timed steps after which no further one is timed
MARGIN = 1.1  #: factor that accounts for checkpoints, metrics and events
#: speed-up from which twice as many threads per run are used; threads wait for each other if another process needs a core
WORTHWHILE = 1.25


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Estimated seconds for runs of one variant."""

    start_seconds: float  #: building the model, and the slower first step and evaluation batch
    epoch_seconds: float  #: training and evaluation of one epoch, including data loading

    def run_seconds(self, epochs: int) -> float:
        return self.start_seconds + epochs * self.epoch_seconds if epochs else 0.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Throughput of every variant, by the variant's name."""

    throughputs: Mapping[str, Throughput]

    def seconds(self, runs: Sequence[PlannedRun]) -> float:
        """Return the seconds that the remaining epochs of `runs` take sequentially."""
        return sum(self.throughputs[run.variant.name].run_seconds(run.epochs_left) for run in runs)

    def epochs_within(self, runs: Sequence[PlannedRun], budget: float, *, share: float = 1.0) -> int:
        """Return the largest number of epochs per run such that all `runs` take at most `budget` seconds.

        The baseline is assumed to be trained for all epochs, and other variants for the fraction `share` of the epochs on
        average. Variants that set `schedule.epochs` are trained for that number.
        """
        parts = [
            (self.throughputs[run.variant.name], 1.0 if run.variant.is_baseline else share)
            for run in runs
            if not run.variant.sets("schedule.epochs")
        ]
        own = [run for run in runs if run.variant.sets("schedule.epochs")]
        fixed = sum(throughput.start_seconds for throughput, _ in parts) + self.full_seconds(own, epochs=0)
        per_epoch = sum(throughput.epoch_seconds * part for throughput, part in parts)
        return max(int((budget - fixed) / per_epoch), 0)

    def full_seconds(self, runs: Sequence[PlannedRun], *, epochs: int) -> float:
        """Return the seconds of complete `runs` of `epochs` epochs, unless a variant sets `schedule.epochs`."""
        return sum(
            self.throughputs[run.variant.name].run_seconds(
                run.recipe.schedule.epochs if run.variant.sets("schedule.epochs") else epochs
            )
            for run in runs
        )


def measure_throughput(study: Study, benchmark: BenchmarkBatch) -> Estimate:
    """Time real training steps and evaluation batches of all variants."""
    found: dict[str, Throughput] = {}
    with cpu_threads(study.baseline_recipe.train.threads):
        # separately, because the models may not fit into memory together
        for variant in counted(study.variants, "variants timed"):
            recipe = study.recipe_of(variant)
            own = benchmark.for_recipe(recipe)
            begin = time.perf_counter()
            profiler = Profiler(recipe, own)
            wait = synchronizer(profiler.device)
            built = time.perf_counter() - begin
            # where kernels are compiled or tuned, and in a process that has not trained before, first calls take longer
            warm = bool(found) and profiler.device.type == "cpu" and not recipe.train.compile
            first_step, step = _seconds(profiler.train_step, wait, warm=warm)
            first_batch, batch = _seconds(profiler.evaluate_batch, wait, warm=warm)
            start = built + first_step + first_batch
            load, train = own.load_seconds, profiler.recipe.train  # with sizes cut to the data
            load_eval = load * train.accumulate / train.batch_size * len(own.data.val) / own.eval_batches
            if train.workers:  # loading processes load batches in advance
                step, batch = max(step, load / train.workers), max(batch, load_eval / train.workers)
            else:
                step, batch = step + load, batch + load_eval
            epoch = MARGIN * (own.steps_per_epoch * step + own.eval_batches * batch)
            found[variant.name] = Throughput(start_seconds=start, epoch_seconds=epoch)
    return Estimate(throughputs=found)


def choose_threads(study: Study, benchmark: BenchmarkBatch, concurrency: Callable[[Recipe], int]) -> int:
    """Return the number of CPU threads per run with which the study's runs take the least time.

    Real training steps of the baseline are timed with 1, 2, 4, ... threads, up to torch's present number, until more threads
    no longer make the study faster. Small models take one thread: threads that wait for each other cost more than they save.

    Args:
        study: the study.
        benchmark: its opened data.
        concurrency: maps a recipe to the number of runs that are trained at the same time.
    """
    recipe, most = study.baseline_recipe, torch.get_num_threads()
    chosen, least = 1, math.inf
    if most == 1:
        return chosen
    profiler = Profiler(recipe, benchmark)
    threads = 1
    while threads <= most:
        with cpu_threads(threads):
            _, step = _seconds(profiler.train_step, None, warm=threads > 1 and not recipe.train.compile)
        train = dataclasses.replace(recipe.train, threads=threads)
        jobs = concurrency(dataclasses.replace(recipe, train=train))
        seconds = step * (CONTENTION if jobs > 1 else 1) / jobs
        if seconds * WORTHWHILE > least:
            break
        chosen, least = threads, seconds
        threads *= 2
    return chosen


def _seconds(work: Callable[[], None], wait: Callable[[], object] | None, *, warm: bool) -> tuple[float, float]:
    """Return the seconds of the first call, and the median seconds of a few calls, without the first unless `warm`."""
    seconds: list[float] = []
    ignored = 0 if warm else 1
    while len(seconds) < ROUNDS + ignored and sum(seconds[ignored:]) < LONG_ENOUGH:
        start = time.perf_counter()
        work()
        if wait is not None:
            wait()
        seconds.append(time.perf_counter() - start)
    return seconds[0], float(np.median(seconds[ignored:]))


def fit_epochs(
    estimate: Estimate,
    runs: Sequence[PlannedRun],
    *,
    budget: float,
    most: int | None,
    share: Callable[[int], float] = lambda epochs: 1.0,
) -> int:
    """Return the largest number of epochs, up to `most`, at which all `runs` fit into `budget` seconds.

    Args:
        estimate: throughput of all variants.
        runs: all runs of the study.
        budget: available seconds.
        most: maximum number of epochs; None: no maximum.
        share: maps a number of epochs to the fraction for which variants are trained on average (1: no variant is stopped
            early).

    Raises:
        UsageError: not even one epoch fits; the message contains the time that one epoch takes.
    """
    epochs = estimate.epochs_within(runs, budget)
    if epochs < 1:
        one = estimate.full_seconds(runs, epochs=1)
        raise UsageError(
            f"the time budget of {format_duration(budget)} is too short for one epoch: {len(runs)} runs of one epoch take "
            f"about {format_duration(one)}; raise the budget, or use fewer seeds, fewer variants or a smaller host"
        )
    while most is None or epochs < most:
        if estimate.epochs_within(runs, budget, share=share(epochs + 1)) <= epochs:
            return epochs
        epochs += 1
    return most


def trained_share(study: Study) -> Callable[[int], float]:
    """Return a function from a number of epochs to the fraction that variants train for on average."""
    schedules, halving = study.schedules, study.halving

    def share(epochs: int) -> float:
        if halving is None:
            return 1.0
        try:
            shorter = [dataclasses.replace(schedule, epochs=epochs) for schedule in schedules]
            return expected_share(halving, *shorter, variants=len(study.variants) - 1)
        except (UsageError, ValueError):  # too few epochs for a rung or the warm-up, so halving saves no time
            return 1.0

    return share


def expected_runs(study: Study, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return `runs`, with the epochs that halving is expected to save counted as done."""
    epochs = study.baseline_recipe.schedule.epochs
    saved = round(epochs * (1 - trained_share(study)(epochs)))
    return [
        run if run.variant.is_baseline else dataclasses.replace(run, epochs_done=max(run.epochs_done, saved))
        for run in runs
    ]


def halving_plan(study: Study) -> str:
    """Describe the study's halving for the plan; empty if halving is not used.

    Raises:
        UsageError: there are too few epochs for a rung.
    """
    if study.halving is None:
        return ""
    epochs = ", ".join(str(epoch) for epoch in rung_epochs(study.halving, *study.schedules))
    return f"halving: after epoch {epochs} about one in {study.halving.eta} variants continues"
