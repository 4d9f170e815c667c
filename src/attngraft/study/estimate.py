"""How long a study will take, from a few real steps of every variant, and how many epochs a time budget allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attngraft.errors import UsageError
from attngraft.study.config import StudyConfig
from attngraft.study.schedule import PlannedRun
from attngraft.study.values import shown_duration
from attngraft.training.profiler import BenchmarkBatch, Profiler, synchronizer
from attngraft.training.setup import cpu_threads

ROUNDS = 3  #: timed steps per variant
MARGIN = 1.1  #: what is beside steps and batches: checkpoints, metrics, events


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast one variant goes."""

    start_seconds: float  #: building the model, and what only the first step does
    epoch_seconds: float  #: training and evaluating one epoch, loading included

    def run_seconds(self, epochs: int) -> float:
        return self.start_seconds + epochs * self.epoch_seconds if epochs else 0.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The pace of every variant, by name."""

    paces: Mapping[str, Pace]

    def seconds(self, runs: Sequence[PlannedRun]) -> float:
        """For what is left of `runs`, one after the other."""
        return sum(self.paces[run.variant.name].run_seconds(run.epochs_left) for run in runs)

    def epochs_within(self, runs: Sequence[PlannedRun], budget: float, *, share: float = 1.0) -> int:
        """The most epochs per run with which `runs`, made anew, take no longer than `budget` seconds, where variants are
        trained for that `share` of them on average and the baseline for all."""
        paces = [(self.paces[run.variant.name], 1.0 if run.variant.is_baseline else share) for run in runs]
        fixed = sum(pace.start_seconds for pace, _ in paces)
        per_epoch = sum(pace.epoch_seconds * part for pace, part in paces)
        return max(int((budget - fixed) / per_epoch), 0)


def measure_paces(config: StudyConfig, benchmark: BenchmarkBatch) -> Estimate:
    """Time real training steps and evaluation batches of all variants; the runs' randomness is untouched.

    A step that has not warmed up takes longer, so each variant makes one before the rounds begin.
    """
    first = config.recipe_of(config.baseline, config.seeds[0])
    starts: dict[str, float] = {}
    steps: dict[str, list[float]] = {}
    batches: dict[str, list[float]] = {}
    with cpu_threads(first.train.threads):
        for variant in config.variants:  # one at a time, as many may not fit into memory together
            begin = time.perf_counter()
            bench = Profiler(config.recipe_of(variant, config.seeds[0]), benchmark)
            bench.train_step()
            bench.evaluate_batch()
            starts[variant.name] = time.perf_counter() - begin
            steps[variant.name] = [_time(bench, training=True) for _ in range(ROUNDS)]
            batches[variant.name] = [_time(bench, training=False) for _ in range(ROUNDS)]
    workers = first.train.workers
    paces = {}
    for name in starts:
        step, batch = float(np.median(steps[name])), float(np.median(batches[name]))
        load = benchmark.load_seconds
        loaded = step + load if workers == 0 else max(step, load / workers)
        load_eval = load * first.train.accumulate / first.train.batch_size * _examples_per_eval_batch(benchmark)
        evaluated = batch + load_eval if workers == 0 else max(batch, load_eval / workers)
        epoch = MARGIN * (benchmark.steps_per_epoch * loaded + benchmark.eval_batches * evaluated)
        paces[name] = Pace(start_seconds=starts[name], epoch_seconds=epoch)
    return Estimate(paces=paces)


def fit_epochs(
    estimate: Estimate,
    runs: Sequence[PlannedRun],
    *,
    budget: float,
    most: int | None,
    share: Callable[[int], float] = lambda epochs: 1.0,
) -> int:
    """The number of epochs for a study of `runs` in `budget` seconds, at most `most`.

    Args:
        estimate: the paces.
        runs: of the study.
        budget: seconds.
        most: epochs.
        share: the part of so many epochs for which variants are trained on average; all, where none is stopped early.

    Raises:
        UsageError: not even one epoch fits; says how long it would take.
    """
    epochs = estimate.epochs_within(runs, budget)
    if epochs < 1:
        raise UsageError(
            f"the time budget of {shown_duration(budget)} does not suffice for one epoch: {len(runs)} runs of one epoch "
            f"take about {shown_duration(sum(estimate.paces[r.variant.name].run_seconds(1) for r in runs))}; "
            "raise it, or take fewer seeds, fewer variants or a smaller host"
        )
    while most is None or epochs < most:
        if estimate.epochs_within(runs, budget, share=share(epochs + 1)) <= epochs:
            return epochs
        epochs += 1
    return most


def _examples_per_eval_batch(benchmark: BenchmarkBatch) -> float:
    return len(benchmark.data.val) / benchmark.eval_batches


def _time(bench: Profiler, *, training: bool) -> float:
    wait = synchronizer(bench.device)
    start = time.perf_counter()
    (bench.train_step if training else bench.evaluate_batch)()
    if wait is not None:
        wait()
    return time.perf_counter() - start
