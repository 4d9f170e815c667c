"""The one timing harness: how many times slower is the candidate, measured side by side.

A machine's speed drifts (clock, neighbours, temperature), so two timings taken apart are not comparable. Here baseline
and candidate alternate, each pair gives one ratio, and the answer is the median of the ratios, with its interval.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

Work = Callable[[], object]
Clock = Callable[[], float]

RESAMPLES = 10_000
_MOST_REPEATS = 100_000


@dataclass(frozen=True, kw_only=True)
class PairedRatio:
    """Candidate's time over the baseline's: median of the paired ratios and its 95% bootstrap interval."""

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
    """A limit that a ratio or a duration must keep. It fails only if the whole interval lies beyond the limit."""

    limit: float

    def passes(self, measured: PairedRatio | Duration) -> bool:
        """Whether the interval reaches the limit or stays below it."""
        return measured.low <= self.limit


def paired_ratio(
    baseline: Work,
    candidate: Work,
    *,
    pairs: int = 30,
    warmup: int = 3,
    min_seconds: float = 0.0,
    synchronize: Callable[[], object] | None = None,
    clock: Clock = time.perf_counter,
) -> PairedRatio:
    """Time `candidate` against `baseline` by interleaved pairs in alternating order.

    Args:
        baseline, candidate: the work; what they return is dropped.
        pairs: number of paired samples.
        warmup: untimed calls of each before the first pair.
        min_seconds: a sample repeats its work until the baseline takes at least this long, for work too short to time.
        synchronize: waits for the device; called before the clock is read. None on CPU.
        clock: seconds; `time.process_time` where CPU time is meant.

    Raises:
        ValueError: `pairs` below 1, or work that the clock cannot see (raise `min_seconds`).
    """
    return several(
        baseline,
        {"candidate": candidate},
        pairs=pairs,
        warmup=warmup,
        min_seconds=min_seconds,
        synchronize=synchronize,
        clock=clock,
    )["candidate"]


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
    """Time several candidates against one baseline, round robin; every round gives one pair per candidate.

    Arguments and errors are those of `paired_ratio`.
    """
    if pairs < 1:
        raise ValueError(f"pairs must be at least 1, not {pairs}")
    stopwatch = _Stopwatch(clock, synchronize)
    works = [baseline, *candidates.values()]
    for work in works:
        for _ in range(warmup):
            work()
    repeats = _repeats(baseline, min_seconds, stopwatch)
    seconds = np.empty((pairs, len(works)))
    with _quiet_collector():
        for row, order in enumerate(rounds(len(works), pairs)):
            gc.collect()
            for column in order:
                seconds[row, column] = stopwatch.time(works[column], repeats) / repeats
    if not (seconds > 0).all():
        raise ValueError("the clock did not move during a sample: the work is too short; raise min_seconds")
    return {name: _summary(seconds[:, 0], seconds[:, index]) for index, name in enumerate(candidates, start=1)}


def duration(
    work: Work,
    *,
    samples: int = 15,
    warmup: int = 1,
    synchronize: Callable[[], object] | None = None,
    clock: Clock = time.perf_counter,
) -> Duration:
    """Seconds per call of `work`, for bars that are absolute.

    Raises:
        ValueError: `samples` below 1.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, not {samples}")
    stopwatch = _Stopwatch(clock, synchronize)
    for _ in range(warmup):
        work()
    with _quiet_collector():
        seconds = np.array([stopwatch.time(work, 1) for _ in range(samples)])
    median, low, high = median_interval(seconds)
    return Duration(seconds=median, low=low, high=high, samples=samples)


def median_interval(values: Sequence[float] | np.ndarray, *, confidence: float = 0.95) -> tuple[float, float, float]:
    """Median of `values` and its percentile-bootstrap interval; the same values always give the same interval."""
    values = np.asarray(values, dtype=float)
    drawn = np.random.default_rng(0).choice(values, size=(RESAMPLES, values.size))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.median(drawn, axis=1), [tail, 1 - tail])
    return float(np.median(values)), float(low), float(high)


def rounds(works: int, count: int) -> Iterator[list[int]]:
    """The order of `works` pieces of work in each of `count` rounds.

    Every second round runs backwards and every second pair of rounds starts one later, so that over 2 * works rounds
    each piece stands equally often at each place and two pieces give A B, B A, B A, A B, ...
    """
    for index in range(count):
        start = index // 2 % works
        order = [(start + place) % works for place in range(works)]
        yield order[::-1] if index % 2 else order


@dataclass(frozen=True)
class _Stopwatch:
    clock: Clock
    synchronize: Callable[[], object] | None

    def time(self, work: Work, repeats: int) -> float:
        start = self._now()
        for _ in range(repeats):
            work()
        return self._now() - start

    def _now(self) -> float:
        if self.synchronize is not None:
            self.synchronize()
        return self.clock()


def _repeats(baseline: Work, min_seconds: float, stopwatch: _Stopwatch) -> int:
    """How often a sample repeats its work, the same for all pieces: until the baseline takes `min_seconds`."""
    repeats = 1
    while min_seconds > 0 and repeats < _MOST_REPEATS:
        taken = stopwatch.time(baseline, repeats)
        if taken >= min_seconds:
            break
        growth = min_seconds / taken * 1.1 if taken > 0 else 10.0
        repeats = min(_MOST_REPEATS, max(repeats + 1, math.ceil(repeats * min(growth, 10.0))))
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
def _quiet_collector() -> Iterator[None]:
    """Keep the garbage collector from running inside a sample; garbage goes between rounds.

    What is there before the first round is set aside meanwhile: to look through all of it every time would take longer
    than the samples. Where somebody has set things aside already, theirs stay so and no more are.
    """
    was_enabled = gc.isenabled()
    sets_aside = gc.get_freeze_count() == 0
    gc.disable()
    if sets_aside:
        gc.collect()
        gc.freeze()
    try:
        yield
    finally:
        if sets_aside:
            gc.unfreeze()
        if was_enabled:
            gc.enable()
