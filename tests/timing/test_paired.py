"""Interleaved timing, with a clock controlled by the test."""

from __future__ import annotations

import gc
import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngraft.timing.paired import Bar, Duration, PairedRatio, duration, median_interval, paired_ratio, rounds, several


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collecting garbage between rounds takes real time, which these tests do not look at."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


class FakeMachine:
    """A clock, and work that moves it. `drift` makes the machine slower with every call."""

    def __init__(self, drift: float = 0.0, noise: float = 0.0) -> None:
        self.now = 0.0
        self.drift, self.noise = drift, noise
        self.calls: list[str] = []
        self.random = np.random.default_rng(0)

    def clock(self) -> float:
        return self.now

    def work(self, name: str, seconds: float):
        def run() -> None:
            speed = (1 + self.drift * len(self.calls)) * (1 + self.noise * self.random.standard_normal())
            self.calls.append(name)
            self.now += seconds * speed

        return run


def test_ratio_of_a_steady_machine_is_exact():
    machine = FakeMachine()
    measured = paired_ratio(machine.work("a", 0.5), machine.work("b", 0.75), pairs=8, clock=machine.clock)
    assert (measured.ratio, measured.low, measured.high) == pytest.approx((1.5, 1.5, 1.5))
    assert (measured.baseline_seconds, measured.candidate_seconds) == pytest.approx((0.5, 0.75))
    assert measured.pairs == 8


def test_pairs_alternate_after_the_warmup():
    machine = FakeMachine()
    paired_ratio(machine.work("a", 1), machine.work("b", 1), pairs=4, warmup=2, clock=machine.clock)
    assert "".join(machine.calls) == "aabb" + "ab" + "ba" + "ba" + "ab"


def test_drift_does_not_move_the_ratio():
    machine = FakeMachine(drift=0.01)  # the last call takes twice as long as the first
    measured = paired_ratio(machine.work("a", 1.0), machine.work("b", 1.1), pairs=40, warmup=0, clock=machine.clock)
    assert measured.ratio == pytest.approx(1.1, rel=0.01)
    assert measured.low <= 1.1 <= measured.high


@pytest.mark.slow
def test_intervals_cover_the_truth_under_noise():
    trials, covered = 60, 0
    machine = FakeMachine(noise=0.05)
    for _ in range(trials):
        measured = paired_ratio(machine.work("a", 1.0), machine.work("b", 1.2), pairs=30, warmup=0, clock=machine.clock)
        covered += measured.low < 1.2 < measured.high
        assert measured.high - measured.low < 0.15
    assert covered >= 0.85 * trials  # 0.95 are expected; fewer than 0.85 come by chance once in a thousand


def test_short_work_is_repeated():
    machine = FakeMachine()
    measured = paired_ratio(
        machine.work("a", 1e-4), machine.work("b", 2e-4), pairs=2, warmup=0, min_seconds=0.01, clock=machine.clock
    )
    assert measured.ratio == pytest.approx(2.0)
    assert measured.baseline_seconds == pytest.approx(1e-4)
    counted = Counter(machine.calls)
    assert counted["b"] >= 200  # two samples of at least 100 repeats


def test_work_too_short_for_the_clock_is_refused():
    machine = FakeMachine()
    with pytest.raises(ValueError, match="min_seconds"):
        paired_ratio(machine.work("a", 0.0), machine.work("b", 0.0), pairs=2, clock=machine.clock)
    with pytest.raises(ValueError, match="at least 1"):
        paired_ratio(machine.work("a", 1.0), machine.work("b", 1.0), pairs=0, clock=machine.clock)


def test_the_device_is_synchronized_before_every_reading():
    machine = FakeMachine()
    pending = [0.0]

    def launch(seconds: float):
        return lambda: pending.__setitem__(0, pending[0] + seconds)

    def synchronize() -> None:
        machine.now += pending[0]
        pending[0] = 0.0

    measured = paired_ratio(launch(1.0), launch(3.0), pairs=3, warmup=1, synchronize=synchronize, clock=machine.clock)
    assert measured.ratio == pytest.approx(3.0)


def test_several_share_one_baseline():
    machine = FakeMachine(drift=0.0005)
    works = {name: machine.work(name, seconds) for name, seconds in (("x", 1.0), ("y", 2.0), ("z", 0.5))}
    measured = several(machine.work("base", 1.0), works, pairs=16, warmup=0, clock=machine.clock)
    assert list(measured) == ["x", "y", "z"]
    assert [ratio.ratio for ratio in measured.values()] == pytest.approx([1.0, 2.0, 0.5], rel=0.01)
    assert Counter(machine.calls) == {"base": 16, "x": 16, "y": 16, "z": 16}


@given(works=st.integers(1, 6), cycles=st.integers(1, 3))
def test_every_position_is_equally_frequent(works: int, cycles: int):
    orders = list(rounds(works, 2 * works * cycles))
    assert all(sorted(order) == list(range(works)) for order in orders)
    places = Counter(itertools.chain.from_iterable(enumerate(order) for order in orders))
    assert set(places.values()) == {2 * cycles}


@settings(deadline=None, max_examples=20)
@given(values=st.lists(st.floats(0.1, 10), min_size=1, max_size=40))
def test_interval_holds_the_median_and_is_deterministic(values: list[float]):
    median, low, high = median_interval(values)
    assert median == pytest.approx(np.median(values))
    assert min(values) <= low <= median <= high <= max(values)
    assert median_interval(values) == (median, low, high)


@pytest.mark.parametrize(
    ("low", "high", "passes"), [(0.98, 1.01, True), (1.02, 1.05, True), (1.03, 1.05, True), (1.031, 1.05, False)]
)
def test_a_bar_fails_only_if_the_interval_lies_beyond_it(low: float, high: float, passes: bool):
    ratio = PairedRatio(ratio=1.04, low=low, high=high, baseline_seconds=1, candidate_seconds=1.04, pairs=30)
    assert Bar(1.03).passes(ratio) is passes
    assert Bar(1.03).passes(Duration(seconds=1.04, low=low, high=high, samples=3)) is passes


def test_duration():
    machine = FakeMachine()
    measured = duration(machine.work("a", 0.25), samples=5, warmup=2, clock=machine.clock)
    assert measured == Duration(seconds=0.25, low=0.25, high=0.25, samples=5)
    assert len(machine.calls) == 7
    with pytest.raises(ValueError, match="at least 1"):
        duration(machine.work("a", 0.25), samples=0)


def test_the_garbage_collector_is_put_back_after_an_error():
    def broken() -> None:
        assert not gc.isenabled()
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        duration(broken, warmup=0)
    assert gc.isenabled()


@pytest.mark.parametrize("frozen", [False, True])
def test_existing_objects_are_frozen_during_measurements(frozen: bool):
    """Else every round looks through all that is in memory; what somebody has set aside is theirs."""
    before = gc.get_freeze_count()
    gc.unfreeze()
    if frozen:
        gc.freeze()
    kept = gc.get_freeze_count()
    seen: list[int] = []
    try:
        duration(lambda: seen.append(gc.get_freeze_count()), samples=1, warmup=0)
        assert (gc.get_freeze_count() > 0) is frozen
    finally:
        gc.unfreeze()
        if before:
            gc.freeze()
    assert 0 < seen[0] <= kept if frozen else seen[0] > 1000


def test_a_ratio_prints_itself_with_its_interval():
    ratio = PairedRatio(ratio=1.0234, low=1.01, high=1.0371, baseline_seconds=1, candidate_seconds=1, pairs=30)
    assert str(ratio) == "1.023 [1.010, 1.037]"
