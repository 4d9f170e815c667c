"""Intervals and tests against brute force, scipy, textbook values and simulated studies of known truth."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from attngraft.results.measured import ClosedForm, MeanAveragePrecision, MeanScore, SpearmanCorrelation, macro_f1
from attngraft.results.statistics import (
    FEWEST,
    RESAMPLES,
    affordable_resamples,
    crossed_bootstraps,
    crossed_bootstraps_of,
    crossed_bootstraps_of_parts,
    holm,
    interval_of,
    mcnemar,
    paired_differences,
    t_interval,
)
from attngraft.results.study import Interval

small_differences = hnp.arrays(
    np.int8, st.tuples(st.integers(1, 4), st.integers(1, 12)), elements=st.integers(-1, 1)
).map(lambda array: array.astype(float))


def simulated_study(
    generator: np.random.Generator, *, seeds: int, examples: int, seed_noise: float, example_noise: float, noise: float
) -> np.ndarray:
    """(S, N) differences around 0: a part per seed, a part per example, and the rest."""
    return (
        generator.normal(0, 1, (seeds, 1)) * seed_noise
        + generator.normal(0, 1, (1, examples)) * example_noise
        + generator.normal(0, 1, (seeds, examples)) * noise
    )


class TestCrossedBootstrap:
    def test_examples_alone_follow_the_binomial(self) -> None:
        """One seed, half of the examples 1: resampled means are binomial, whose quantiles are known."""
        differences = np.array([[0.0, 1.0] * 50])
        interval = crossed_bootstraps([differences], resamples=20_000)[0]
        assert interval.point == 0.5
        assert interval.low == pytest.approx(stats.binom.ppf(0.025, 100, 0.5) / 100, abs=0.011)
        assert interval.high == pytest.approx(stats.binom.ppf(0.975, 100, 0.5) / 100, abs=0.011)

    def test_brute_force_over_examples(self) -> None:
        """Every resample of four examples, listed."""
        values = np.array([0.0, 1.0, 5.0, 2.0])
        means = [np.mean([values[i] for i in drawn]) for drawn in itertools.product(range(4), repeat=4)]
        interval = crossed_bootstraps([values[None]], resamples=40_000)[0]
        assert interval.low == pytest.approx(np.quantile(means, 0.025), abs=0.26)
        assert interval.high == pytest.approx(np.quantile(means, 0.975), abs=0.26)

    def test_only_seeds_vary(self) -> None:
        """Every example the same within a seed: nothing is left but the t-interval's question, and its width."""
        by_seed = np.array([0.1, 0.3, 0.35, 0.2, 0.25])
        interval = crossed_bootstraps([np.repeat(by_seed[:, None], 40, axis=1)], resamples=20_000)[0]
        student = t_interval(by_seed)
        assert student is not None
        assert interval.high - interval.low == pytest.approx(student.high - student.low, rel=0.05)

    def test_many_seeds_and_examples_is_close_to_the_plain_percentiles(self) -> None:
        generator = np.random.default_rng(3)
        differences = simulated_study(generator, seeds=60, examples=80, seed_noise=0.3, example_noise=0.3, noise=0.5)
        resamples = [
            differences[generator.integers(60, size=60)][:, generator.integers(80, size=80)].mean() for _ in range(4000)
        ]
        interval = crossed_bootstraps([differences], resamples=4000)[0]
        assert interval.low == pytest.approx(np.quantile(resamples, 0.025), abs=0.02)
        assert interval.high == pytest.approx(np.quantile(resamples, 0.975), abs=0.02)

    @given(small_differences)
    @settings(max_examples=50, deadline=None)
    def test_properties(self, differences: np.ndarray) -> None:
        interval = crossed_bootstraps([differences], resamples=200)[0]
        assert interval == crossed_bootstraps([differences], resamples=200)[0], "the same input gives the same interval"
        assert interval.low <= interval.point <= interval.high
        assert interval.point == pytest.approx(differences.mean())
        scaled = crossed_bootstraps([100 * differences], resamples=200)[0]
        np.testing.assert_allclose([scaled.low, scaled.high], [100 * interval.low, 100 * interval.high], atol=1e-9)

    def test_identical_predictions(self) -> None:
        interval = crossed_bootstraps([np.zeros((3, 50))])[0]
        assert (interval.point, interval.low, interval.high) == (0, 0, 0)

    @pytest.mark.parametrize(
        "differences", [np.zeros(3), np.zeros((0, 5)), np.zeros((2, 0)), np.array([[0.0, np.nan]])]
    )
    def test_refuses_what_has_no_mean(self, differences: np.ndarray) -> None:
        with pytest.raises(ValueError, match="differences must be"):
            crossed_bootstraps([differences])[0]

    def test_size_of_a_real_study_is_quick(self) -> None:
        differences = np.random.default_rng(0).integers(-1, 2, (3, 10_000)).astype(float)
        start = time.process_time()
        crossed_bootstraps([differences], resamples=2000)[0]
        assert time.process_time() - start < 1.0

    @pytest.mark.parametrize("seeds", [2, 3, 5])
    @pytest.mark.parametrize(
        ("seed_noise", "example_noise", "noise"), [(0.2, 0.0, 0.5), (0.0, 1.0, 0.3), (0.05, 0.4, 0.8)]
    )
    def test_coverage(self, seeds: int, seed_noise: float, example_noise: float, noise: float) -> None:
        """At least 95%, up to what 300 simulated studies can tell (one-sided, p > 0.001)."""
        generator, covered, studies = np.random.default_rng(11), 0, 300
        for _ in range(studies):
            differences = simulated_study(
                generator, seeds=seeds, examples=150, seed_noise=seed_noise, example_noise=example_noise, noise=noise
            )
            interval = crossed_bootstraps([differences], resamples=300)[0]
            covered += interval.low <= 0 <= interval.high
        assert stats.binomtest(covered, studies, 0.95, alternative="less").pvalue > 0.001


class TestBootstrapOfAnyMetric:
    @staticmethod
    def ranked(generator: np.random.Generator, truth: np.ndarray, *, noise: float) -> MeanAveragePrecision:
        return MeanAveragePrecision(truth + generator.normal(0, noise, truth.shape), truth)

    def test_against_a_loop(self) -> None:
        """Every resample written out: examples of both runs, then seeds; the first class is in one example only."""
        generator = np.random.default_rng(0)
        truth = np.concatenate([np.eye(30, 1, dtype=bool), generator.random((30, 2)) < 0.4], axis=1)
        seeds = [[self.ranked(generator, truth, noise=noise) for _ in range(3)] for noise in (1.0, 0.7)]
        found = crossed_bootstraps_of(seeds[0], seeds[1:], resamples=300)[0][0]
        generator, resamples, undefined = np.random.default_rng(0), np.empty((300, 3)), 0
        for row in range(300):
            at = np.repeat(np.arange(30), generator.multinomial(30, np.full(30, 1 / 30)))
            undefined += 0 not in at
            for seed, (before, after) in enumerate(zip(*seeds, strict=True)):
                resamples[row, seed] = after.take(at).point - before.take(at).point
        weights = generator.multinomial(3, np.full(3, 1 / 3), size=300)
        by_seed = np.array([after.point - before.point for before, after in zip(*seeds, strict=True)])
        expected = interval_of((resamples * weights).mean(axis=1), by_seed)
        assert undefined > 50
        np.testing.assert_allclose([found.low, found.point, found.high], [expected.low, by_seed.mean(), expected.high])

    def test_a_mean_score_has_the_interval_of_its_differences(self) -> None:
        generator = np.random.default_rng(2)
        before, after = (generator.random((2, 3, 400)) < np.array([0.5, 0.6])[:, None, None]).astype(float)
        found = crossed_bootstraps_of([*map(MeanScore, before)], [[*map(MeanScore, after)]], resamples=4000)[0][0]
        expected = crossed_bootstraps([after - before], resamples=4000)[0]
        np.testing.assert_allclose([found.low, found.high], [expected.low, expected.high], atol=0.004)

    def test_what_is_undefined_for_one_is_left_out_of_both(self) -> None:
        """The precision of a class that a run never predicts is undefined."""

        def precision(sums: np.ndarray) -> np.ndarray:
            correct, predicted = np.split(sums, 2, axis=1)
            return correct / predicted

        first = ClosedForm(np.array([[1.0, 1, 1, 1], [0, 0, 1, 0]]), precision)
        second = ClosedForm(np.array([[0.0, 1, 1, 2], [0, 0, 1, 0]]), precision)
        counts = np.array([[1.0, 1], [1, 0], [0, 1]])
        np.testing.assert_allclose(first.parts(counts), [[0.5, 1], [1, 1], [0, np.nan]])
        np.testing.assert_allclose(paired_differences([first], [[second]], counts)[0], [[-0.5], [-0.75], [0]])
        never = ClosedForm(np.array([[0.0, 1, 0, 2], [0, 1, 0, 2]]), precision)
        np.testing.assert_allclose(paired_differences([first], [[never]], counts)[0], [[-0.5], [-0.5], [np.nan]])

    def test_identical_runs(self) -> None:
        statistic = macro_f1(np.arange(50) % 3, np.arange(50) % 4, classes=4)
        interval = crossed_bootstraps_of([statistic, statistic], [[statistic, statistic]])[0][0]
        assert (interval.point, interval.low, interval.high) == (0, 0, 0)

    def test_refuses_what_is_undefined(self) -> None:
        constant = SpearmanCorrelation(np.ones(5), np.arange(5.0))
        with pytest.raises(ValueError, match="undefined"):
            crossed_bootstraps_of([constant], [[constant]])[0][0]

    def test_fewer_resamples_where_they_take_long(self) -> None:
        truth = np.random.default_rng(0).random((1000, 150)) < 0.3
        ranked = self.ranked(np.random.default_rng(0), truth, noise=1.0)
        assert affordable_resamples([ranked], [ranked]) == RESAMPLES
        assert FEWEST < affordable_resamples([ranked] * 40, [ranked] * 40) < RESAMPLES
        assert affordable_resamples([ranked], [ranked], seconds=0.01) == FEWEST

    def test_coverage(self) -> None:
        """Of macro F1, for known probabilities; the truth is that of 400,000 examples."""
        generator, seeds, examples = np.random.default_rng(3), 3, 150

        def drawn(size: int, target: np.ndarray, *, right: float) -> np.ndarray:
            return np.where(generator.random(size) < right, target, generator.integers(4, size=size))

        def f1(target: np.ndarray, *, right: float) -> ClosedForm:
            return macro_f1(drawn(len(target), target, right=right), target, classes=4)

        def targets(size: int) -> np.ndarray:
            return generator.choice(4, size=size, p=[0.6, 0.2, 0.15, 0.05])

        many = targets(400_000)
        truth, covered, studies = f1(many, right=0.6).point - f1(many, right=0.5).point, 0, 150
        for _ in range(studies):
            target = targets(examples)
            runs = [[f1(target, right=right) for _ in range(seeds)] for right in (0.5, 0.6)]
            interval = crossed_bootstraps_of(runs[0], runs[1:], resamples=200)[0][0]
            covered += interval.low <= truth <= interval.high
        assert stats.binomtest(covered, studies, 0.95, alternative="less").pvalue > 0.001


class TestOverSeeds:
    def test_against_scipy(self) -> None:
        values = [0.01, 0.03, -0.005, 0.02]
        expected = stats.ttest_1samp(values, 0.0)
        interval = t_interval(values)
        assert interval is not None
        low, high = expected.confidence_interval(0.95)
        assert (interval.low, interval.high) == (pytest.approx(low), pytest.approx(high))

    def test_two_seeds_by_hand(self) -> None:
        """Student at one degree of freedom is Cauchy: t = 12.706 at 95%, p = 1 - 2 atan(|t|) / pi."""
        interval = t_interval([1.0, 2.0])
        assert interval is not None
        assert interval.high == pytest.approx(1.5 + 12.7062047 * 0.5)

    def test_one_seed_says_nothing(self) -> None:
        assert t_interval([0.3]) is None

    def test_agreement_by_chance_is_no_certainty(self) -> None:
        assert t_interval([1 / 360, 1 / 360]) is None

    def test_no_difference_at_all(self) -> None:
        interval = t_interval([0.0, 0.0, 0.0])
        assert interval is not None
        assert (interval.low, interval.high) == (0, 0)


class TestMcNemar:
    def test_by_hand(self) -> None:
        """6 against 1 discordant examples: 2 (C(7,0) + C(7,1)) / 2^7 = 0.125."""
        variant = np.array([1] * 6 + [0] + [1, 0] * 10)
        baseline = np.array([0] * 6 + [1] + [1, 0] * 10)
        found = mcnemar(baseline, variant, seed=4)
        assert (found.seed, found.only_variant, found.only_baseline) == (4, 6, 1)
        assert found.p_value == pytest.approx(0.125)

    def test_identical_predictions(self) -> None:
        scores = np.array([0, 1, 1])
        assert mcnemar(scores, scores, seed=0).p_value == 1.0

    @given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30))
    def test_symmetric_and_exact(self, pairs: list[tuple[int, int]]) -> None:
        baseline, variant = (np.array(side) for side in zip(*pairs, strict=True))
        there, back = mcnemar(baseline, variant, seed=0), mcnemar(variant, baseline, seed=0)
        assert (there.only_variant, there.only_baseline) == (back.only_baseline, back.only_variant)
        split = there.only_variant + there.only_baseline
        fewer = min(there.only_variant, there.only_baseline)
        expected = min(1.0, 2 * sum(math.comb(split, k) for k in range(fewer + 1)) / 2**split)
        assert there.p_value == pytest.approx(expected) == back.p_value

    def test_not_below_uniform_under_equal_accuracy(self) -> None:
        generator = np.random.default_rng(5)
        p_values = np.array(
            [
                mcnemar(*(generator.random((2, 300)) < 0.8), seed=0).p_value  # type: ignore[misc]
                for _ in range(1000)
            ]
        )
        for level in (0.01, 0.05, 0.2):
            assert stats.binomtest(int((p_values <= level).sum()), 1000, level, alternative="greater").pvalue > 0.001


class TestHolm:
    def test_known_values(self) -> None:
        """0.01, 0.04, 0.03 of three: 3 x 0.01, then 2 x 0.03, then max(0.06, 0.04)."""
        assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])

    def test_a_missing_p_still_counts(self) -> None:
        assert holm([None, 0.02]) == [None, pytest.approx(0.04)]
        assert holm([]) == []

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
    def test_rejects_what_the_step_down_procedure_rejects(self, p_values: list[float]) -> None:
        corrected = holm(p_values)
        rejected = set()
        for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
            if p_values[place] * (len(p_values) - rank) > 0.05:
                break
            rejected.add(place)
        by_value = {i for i, p in enumerate(corrected) if p is not None and p <= 0.05}
        assert {p_values[i] for i in by_value} == {p_values[i] for i in rejected}
        assert all(p is not None and before <= p <= 1 for before, p in zip(p_values, corrected, strict=True))


class TestBootstrapOfParts:
    """Shares of a kind of example, "right / number", one part per kind."""

    @staticmethod
    def shares(right: np.ndarray, numbers: np.ndarray) -> ClosedForm:
        parts = right.shape[1]
        return ClosedForm(np.concatenate([right, numbers], axis=1), lambda sums: sums[:, :parts] / sums[:, parts:])

    def test_each_part_is_a_metric_of_its_own(self) -> None:
        """The second part is in half of the examples, so Student's t has their number and not that of all examples."""
        generator = np.random.default_rng(0)
        numbers = np.stack([np.full(20, 30.0), np.tile([40.0, 0.0], 10)], axis=1)
        right = generator.binomial(numbers.astype(int), 0.5, size=(2, 3, 20, 2)).astype(float)
        runs = [[self.shares(each, numbers) for each in seeds] for seeds in right]
        found = crossed_bootstraps_of_parts(*runs, resamples=300)
        for part, examples in enumerate((20, 10)):
            only = [[self.shares(each[:, [part]], numbers[:, [part]]) for each in seeds] for seeds in right]
            [(bootstrap, estimated)] = crossed_bootstraps_of(only[0], [only[1]], resamples=300)
            each = found[part]
            assert each is not None
            assert each[0] == bootstrap
            assert each[1].example_count == examples
            assert each[1].examples / examples == pytest.approx(estimated.examples / 20)
            assert each[1].seed_means == estimated.seed_means

    def test_parts_without_an_interval(self) -> None:
        """In order: fine, in one example only, in no example, and undefined for one seed of the variant."""
        numbers = np.array([[4.0, 5, 0, 2], [6, 0, 0, 3], [5, 0, 0, 1]])
        right = np.array([[1.0, 2, 0, 1], [2, 0, 0, 1], [5, 0, 0, 1]])
        runs = [self.shares(right, numbers)] * 2
        without = self.shares((right + 1) * [1, 1, 0, 0], numbers * [1, 1, 1, 0])
        found = crossed_bootstraps_of_parts(runs, [runs[0], without], resamples=50)
        assert [each is not None for each in found] == [True, False, False, False]
        assert found[0] is not None and found[0][0].point == pytest.approx(3 / 15 / 2)

    def test_equal_runs(self) -> None:
        right = np.random.default_rng(0).integers(0, 9, (20, 2)).astype(float)
        runs = [self.shares(right, np.full((20, 2), 9.0))] * 3
        for each in crossed_bootstraps_of_parts(runs, runs, resamples=50):
            assert each is not None
            assert each[0] == each[1].interval() == Interval(point=0.0, low=0.0, high=0.0)
