"""The interval that decides verdicts: against explicit loops, special cases, and simulated studies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from attngraft.results.crossed import components, components_of_metric
from attngraft.results.measured import MeanScore, macro_f1
from attngraft.results.statistics import crossed_bootstraps_of, t_interval

tables = hnp.arrays(np.int8, st.tuples(st.integers(2, 4), st.integers(2, 8)), elements=st.integers(-1, 1)).map(
    lambda array: array.astype(float)
)


def by_loops(table: np.ndarray) -> tuple[float, float, float, float]:
    """Mean, and the variances of seeds, examples and the rest, from the sums of squares written out."""
    seeds, examples = table.shape
    mean = sum(table[s, n] for s in range(seeds) for n in range(examples)) / (seeds * examples)
    row = [sum(table[s, n] for n in range(examples)) / examples for s in range(seeds)]
    column = [sum(table[s, n] for s in range(seeds)) / seeds for n in range(examples)]
    of_seeds = examples * sum((each - mean) ** 2 for each in row) / (seeds - 1)
    of_examples = seeds * sum((each - mean) ** 2 for each in column) / (examples - 1)
    rest = 0.0
    for s in range(seeds):
        for n in range(examples):
            rest += (table[s, n] - row[s] - column[n] + mean) ** 2
    rest /= (seeds - 1) * (examples - 1)
    return mean, (of_seeds - rest) / examples, (of_examples - rest) / seeds, rest


@given(tables)
def test_components_are_those_of_the_analysis_of_variance(table: np.ndarray) -> None:
    found = components(table)
    assert (found.mean, found.seeds, found.examples, found.rest) == pytest.approx(by_loops(table), abs=1e-12)


@given(tables)
def test_interval_by_hand(table: np.ndarray) -> None:
    seeds, examples = table.shape
    mean, of_seeds, of_examples, rest = by_loops(table)
    interval = components(table).interval()
    if np.ptp(table.mean(axis=1)) < 1e-12 and abs(mean) > 1e-12:
        assert interval is None
        return
    squared = stats.t.isf(0.025, seeds - 1) ** 2 * (of_seeds + rest / examples) / seeds
    squared += stats.t.isf(0.025, examples - 1) ** 2 * max(of_examples, 0) / examples
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((mean - squared**0.5, mean + squared**0.5), abs=1e-9)


@given(tables, st.sampled_from([0.8, 0.95, 0.99]))
def test_interval_and_p_agree(table: np.ndarray, confidence: float) -> None:
    interval, p = components(table).interval(confidence), components(table).p_value()
    assert (interval is None) == (p is None)
    if interval is not None and p is not None and abs(p - (1 - confidence)) > 1e-6:
        assert (p < 1 - confidence) == (interval.low > 0 or interval.high < 0)


def test_the_interval_at_p_ends_at_zero() -> None:
    table = np.random.default_rng(0).normal(0.3, 1, (4, 60)) + np.random.default_rng(1).normal(0, 0.5, 60)
    p = components(table).p_value()
    assert p is not None
    interval = components(table).interval(1 - p)
    assert interval is not None
    assert interval.low == pytest.approx(0, abs=1e-9)


def test_it_contains_the_t_interval_and_equals_it_without_noise_of_examples() -> None:
    generator = np.random.default_rng(0)
    by_seed = generator.normal(1, 0.3, (5, 1))
    for noise in (0.0, 0.2, 5.0):
        table = by_seed + noise * generator.normal(0, 1, (1, 30)) + 1e-9 * generator.normal(0, 1, (5, 30))
        interval, t = components(table).interval(), t_interval(table.mean(axis=1))
        assert interval is not None
        assert t is not None
        assert interval.high >= t.high - 1e-9
        if noise == 0:
            assert (interval.low, interval.high) == pytest.approx((t.low, t.high), abs=1e-6)


def test_nothing_is_known_with_one_seed_one_example_or_equal_seeds() -> None:
    for table in (np.array([[0.0, 1, 1]]), np.array([[1.0], [2.0]]), np.array([[0.0, 1], [1, 0]])):
        assert components(table).interval() is None
        assert components(table).p_value() is None


def test_no_difference_is_exactly_zero() -> None:
    interval = components(np.zeros((3, 5))).interval()
    assert interval is not None
    assert (interval.point, interval.low, interval.high) == (0, 0, 0)
    assert components(np.zeros((3, 5))).p_value() == 1


def test_tiny_p_values_are_finite() -> None:
    table = np.ones((20, 1000)) + 1e-6 * np.random.default_rng(0).normal(0, 1, (20, 1000))
    p = components(table).p_value()
    assert p is not None
    assert 0 < p < 1e-50


@pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((0, 3)), np.array([[np.nan, 0.0]])])
def test_bad_input(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="differences must be"):
        components(bad).interval()


def test_components_from_resamples_are_those_of_the_table() -> None:
    """The mean of scores as a metric of the whole corpus: the same components, up to the noise of resampling."""
    generator = np.random.default_rng(0)
    table = generator.normal(0, 1, (4, 200)) + generator.normal(0, 1, (1, 200)) + generator.normal(0, 0.2, (4, 1))
    baseline = [MeanScore(np.zeros(200)) for _ in table]
    [(_, found)] = crossed_bootstraps_of(baseline, [[MeanScore(row) for row in table]], resamples=4000)
    exact = components(table)
    assert (found.mean, found.seed_means) == pytest.approx((exact.mean, exact.seed_means))
    assert found.rest == pytest.approx(exact.rest, rel=0.1)
    assert found.examples == pytest.approx(exact.examples, rel=0.1)


def test_one_seed_of_a_metric_has_no_interval() -> None:
    target = np.arange(60) % 3
    runs = [[macro_f1((target + shift) % 3, target, classes=3)] for shift in (0, 1)]
    [(_, found)] = crossed_bootstraps_of(runs[0], [runs[1]], resamples=50)
    assert found.interval() is None


def test_resamples_with_undefined_values_are_dropped() -> None:
    by_seed = np.array([0.1, 0.3])
    resampled = np.array([[0.1, 0.2], [np.nan, 0.4], [0.2, 0.4], [0.0, 0.1]])
    found = components_of_metric(by_seed, resampled, examples=10)
    assert found == components_of_metric(by_seed, resampled[[0, 2, 3]], examples=10)
    assert np.isfinite(found.examples)
