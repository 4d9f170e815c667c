"""Counting, the tests' verdicts, and a small measurement by each default run."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from proof.coverage import Count, disjoint, mcnemar_p_values, paired_anew, simulated
from proof.outcomes import corrected, coverage_tests, uniform_tests
from proof.runs import packed, unpacked
from proof.simulation import SETTINGS

FALSE_ALARM = 1e-3  #: of each test on few studies


def scores(runs: int, accuracy: float, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random((runs, 120)) < accuracy).astype(float)


class TestCount:
    def test_what_is_counted(self) -> None:
        equal, better = scores(5, 0.6, 0), np.ones((5, 120))
        count = Count()
        count.add(equal, equal, truth=0.0, on_these_images=0.0)
        count.add(equal, better, truth=0.0, on_these_images=0.0)
        count.add(equal, better, truth=0.4, on_these_images=float(1 - equal.mean()))
        assert count == Count(studies=3, with_interval=3, interval=2, bootstrap=2, with_t=3, t=2, verdicts=2)
        assert str(count) == "interval 66.7%, bootstrap 66.7%, t 66.7%, called better or worse 66.7%"

    def test_seeds_that_agree_by_chance_have_no_t_interval(self) -> None:
        baseline, variant = np.zeros((3, 50)), np.eye(3, 50)
        count = Count()
        count.add(baseline, variant, truth=0.02, on_these_images=0.02)
        assert (count.studies, count.with_interval, count.t, count.verdicts) == (1, 0, 0, 0)

    def test_disjoint_draws_use_every_run_once(self) -> None:
        baseline, variant = scores(10, 0.7, 1), scores(10, 0.7, 2)
        assert [disjoint(baseline, variant, seeds=seeds).studies for seeds in (3, 5, 10)] == [3, 2, 1]
        assert disjoint(baseline, variant, seeds=5) == sum(
            (disjoint(baseline[part], variant[part], seeds=5) for part in (slice(5), slice(5, 10))), Count()
        )
        assert paired_anew(baseline, variant, seeds=5, pairings=3).studies == 6

    def test_the_same_arguments_give_the_same_count(self) -> None:
        assert simulated(SETTINGS[4], seeds=3, studies=10) == simulated(SETTINGS[4], seeds=3, studies=10)


class TestOutcomes:
    def test_low_coverage_fails_and_due_coverage_passes(self) -> None:
        low = Count(studies=1000, with_interval=1000, interval=950, bootstrap=920, with_t=1000, t=950)
        interval, bootstrap, t = corrected(coverage_tests("x", low))
        assert not bootstrap.passed
        assert t.passed
        assert interval.passed
        assert bootstrap.p == pytest.approx(stats.binom.cdf(920, 1000, 0.95))

    def test_small_p_values_fail(self) -> None:
        generator = np.random.default_rng(0)
        assert all(test.passed for test in corrected(uniform_tests(generator.random(5000))))
        assert not all(test.passed for test in corrected(uniform_tests(generator.random(5000) ** 1.2)))

    def test_correction_is_over_all(self) -> None:
        tests = coverage_tests("x", Count(studies=100, with_interval=100, interval=95, bootstrap=89, with_t=100, t=95))
        alone, among = corrected(tests)[1], corrected(tests * 10)[1]
        assert alone.p == among.p == pytest.approx(stats.binom.cdf(89, 100, 0.95))
        assert (alone.passed, among.passed) == (False, True)


def test_scores_are_kept_bit_for_bit() -> None:
    kept = scores(3, 0.5, 4)
    np.testing.assert_array_equal(unpacked(packed(kept), images=120), kept)


def test_intervals_on_a_few_simulated_studies() -> None:
    for seeds in (3, 10):
        pooled = sum((simulated(setting, seeds=seeds, studies=12) for setting in SETTINGS), Count())
        assert min(test.p for test in coverage_tests(str(seeds), pooled)) > FALSE_ALARM


def test_mcnemar_on_equal_models() -> None:
    assert min(test.p for test in uniform_tests(mcnemar_p_values(images=300, studies=400))) > FALSE_ALARM


@pytest.mark.product
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_intervals_on_simulated_studies(seeds: int) -> None:
    """Without a correction over tests, so with a bound that each of them misses once in a thousand times by chance."""
    counts = [simulated(setting, seeds=seeds, studies=200) for setting in SETTINGS]
    for count in (*counts, sum(counts, Count())):
        assert min(test.p for test in coverage_tests(str(seeds), count)) > FALSE_ALARM
