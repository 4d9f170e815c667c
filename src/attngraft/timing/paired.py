"""Timing of a candidate against a baseline by interleaved pairs.

A machine's speed drifts (clock, other processes, temperature), so separate timings are not comparable. Here baseline and
candidate alternate, each pair gives one ratio, and the result is the median of the ratios with its interval.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from attngraft.counting import counted

Work = Callable[[], object]
Clock = Callable[[], float]

RESAMPLES = 10_000
_MAX_REPEATS = 100_000


@dataclass(frozen=True, kw_only=True)
class PairedRatio:
    """Candidate's time divided by the baseline's: median of paired ratios with 95% bootstrap interval."""

    ratio: float
    low: float
    high: float
    baseline_seconds: float  #: median, per call
    candidate_seconds: float  #: median, per call
    pairs: int

    def __str__(self) -> str:
        return f"{self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, kw_only=True)
class Duration:
    """Seconds per call: median and its 95% bootstrap interval."""

    seconds: float
    low: float
    high: float
    samples: int


@dataclass(frozen=True)
class Bar:
    """An upper limit on a ratio or a duration, missed only if the whole interval lies above it."""

    limit: float

    def passes(self, measured: PairedRatio | Duration) -> bool:
        """Return whether the interval starts at or below the limit."""
        return measured.low <= self.limit


def paired_ratio(baseline: Work, candidate: Work, *, pairs: int = 30, **sampling: Any) -> PairedRatio:
    """Time `candidate` against `baseline` in interleaved pairs of alternating order.

    `sampling` is passed to `several`.
    """
    return several(baseline, {"candidate": candidate}, pairs=pairs, **sampling)["candidate"]


def several(
    baseline: Work,
    candidates: Mapping[str, Work],
    *,
    pairs: int = 30,
    warmup: int = 3,
    min_seconds: float = 0.0,
    synchronize: Callable[[], object] | None = None,
    clock: Clock = time.perf_counter,
) -> dict[str, PairedRatio]:
    """Time several candidates against one baseline in rounds; each round gives one pair per candidate.

    Args:
        baseline, candidates: functions to time; their results are ignored.
        pairs: number of rounds.
        warmup: number of untimed calls of each function before the first round.
        min_seconds: repeat the work of a sample until the baseline takes at least this long, for work that is too short
            to time.
        synchronize: function that waits for the device, called before the clock is read; None on the CPU.
        clock: function that returns seconds; `time.process_time` for CPU time.

    Raises:
        ValueError: `pairs` is below 1, or the work is too short for the clock (raise `min_seconds`).
    """
    if pairs < 1:
        raise ValueError(f"pairs must be at least 1, not {pairs}")
    time_calls = _timer(clock, synchronize)
    works = [baseline, *candidates.values()]
    for work in counted(works, "warming up"):
        for _ in range(warmup):
            work()
    repeats = _repeats(baseline, min_seconds, time_calls)
    seconds = np.empty((pairs, len(works)))
    with collector_off():
        for row, order in enumerate(counted(rounds(len(works), pairs), "timing rounds", total=pairs)):
            gc.collect()
            for column in order:
                seconds[row, column] = time_calls(works[column], repeats) / repeats
    if not (seconds > 0).all():
        raise ValueError("the clock did not advance during a sample: the work is too short; raise min_seconds")
    return {name: _summary(seconds[:, 0], seconds[:, index]) for index, name in enumerate(candidates, start=1)}


def duration(
    work: Work,
    *,
    samples: int = 15,
    warmup: int = 1,
    synchronize: Callable[[], object] | None = None,
    clock: Clock = time.perf_counter,
) -> Duration:
    """Time `work` in seconds per call, to compare with an absolute bar.

    Raises:
        ValueError: `samples` is below 1.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, not {samples}")
    time_calls = _timer(clock, synchronize)
    for _ in range(warmup):
        work()
    with collector_off():
        seconds = np.array([time_calls(work, 1) for _ in counted(range(samples), "timing rounds")])
    median, low, high = median_interval(seconds)
    return Duration(seconds=median, low=low, high=high, samples=samples)


def median_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Return the median of `values` and its 95% percentile-bootstrap interval, with a fixed seed."""
    values = np.asarray(values, dtype=float)
    drawn = np.random.default_rng(0).choice(values, size=(RESAMPLES, values.size))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return float(np.median(values)), float(low), float(high)


def rounds(works: int, count: int) -> Iterator[list[int]]:
    """Yield the order of `works` functions in each of `count` rounds.

    Every second round is reversed, and each pair of rounds starts one function later than the pair before it. Over
    2 * works rounds, each function is equally often at each position; two functions alternate as A B, B A, B A, A B, ...
    """
    for index in range(count):
        start = index // 2 % works
        order = [(start + offset) % works for offset in range(works)]
        yield order[::-1] if index % 2 else order


def _timer(clock: Clock, synchronize: Callable[[], object] | None) -> Callable[[Work, int], float]:
    """Return a function that times repeated calls of `work`, in seconds."""

    def now() -> float:
        if synchronize is not None:
            synchronize()
        return clock()

    def time_calls(work: Work, repeats: int) -> float:
        start = now()
        for _ in range(repeats):
            work()
        return now() - start

    return time_calls


def _repeats(baseline: Work, min_seconds: float, time_calls: Callable[[Work, int], float]) -> int:
    """Return how often a sample repeats its work so that the baseline takes at least `min_seconds`."""
    repeats = 1
    while min_seconds > 0 and repeats < _MAX_REPEATS:
        taken = time_calls(baseline, repeats)
        if taken >= min_seconds:
            break
        growth = min_seconds / taken * 1.1 if taken > 0 else 10.0
        repeats = min(_MAX_REPEATS, max(repeats + 1, math.ceil(repeats * min(growth, 10.0))))
    return repeats


def _summary(baseline: np.ndarray, candidate: np.ndarray) -> PairedRatio:
    ratio, low, high = median_interval(candidate / baseline)
    return PairedRatio(
        ratio=ratio,
        low=low,
        high=high,
        baseline_seconds=float(np.median(baseline)),
        candidate_seconds=float(np.median(candidate)),
        pairs=len(baseline),
    )


@contextmanager
def collector_off() -> Iterator[None]:
    """Disable the garbage collector during samples; garbage is collected between rounds.

    Existing objects are frozen meanwhile, since traversing them in every round would take longer than the samples. If the
    caller has already frozen objects, no further objects are frozen.
    """
    was_enabled = gc.isenabled()
    freezes = gc.get_freeze_count() == 0
    gc.disable()
    if freezes:
        gc.collect()
        gc.freeze()
    try:
        yield
    finally:
        if freezes:
            gc.unfreeze()
        if was_enabled:
            gc.enable()
