"""The group sequential test: its levels, its spending, and the decisions on variants."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from attngraft.results.crossed import Components, components
from attngraft.results.sequential import ALPHA, MOST_SEEDS, SequentialTest, adjusted_p, levels, rounds_from, spent

ROUNDS = rounds_from(3)


def found(mean: float, *, seeds: int, noise: float = 0.01, examples: int = 1000) -> Components:
    """A difference whose seeds' means have the standard deviation `noise`."""
    return Components(
        mean=mean, seed_count=seeds, example_count=examples, seed_means=noise**2, examples=0.0, rest=noise**2
    )


def test_rounds_add_one_seed_at_a_time() -> None:
    assert (*range(3, MOST_SEEDS + 1),) == ROUNDS
    assert rounds_from(19) == (19, 20)


@pytest.mark.parametrize("alpha", [ALPHA, ALPHA / 4])
def test_levels_spend_alpha_on_brownian_motion(alpha: float) -> None:
    """With 200,000 random walks, crossings up to each round agree with the spending function."""
    steps = np.random.default_rng(0).standard_normal((200_000, MOST_SEEDS), dtype=np.float32)
    z = np.abs(steps.cumsum(axis=1) / np.sqrt(np.arange(1, MOST_SEEDS + 1)))[:, 2:]
    crossed = np.logical_or.accumulate(z > special.ndtri(1 - np.array(levels(ROUNDS, alpha)) / 2), axis=1).mean(axis=0)
    allowed = np.array([spent(alpha, count / MOST_SEEDS) for count in ROUNDS])
    assert crossed == pytest.approx(allowed, abs=4 * (alpha / 200_000) ** 0.5)


def test_one_round_is_the_plain_test() -> None:
    assert levels((20,), ALPHA) == pytest.approx((ALPHA,))
    assert adjusted_p(0.02, (20,), 0) == pytest.approx(0.02, rel=1e-3)


def test_corrected_p_is_the_alpha_at_which_a_round_is_significant() -> None:
    for index in (0, 4, 12):
        assert adjusted_p(levels(ROUNDS, 0.0125)[index], ROUNDS, index) == pytest.approx(0.0125, rel=1e-3)
    assert adjusted_p(1.0, ROUNDS, 5) == 1.0
    assert adjusted_p(1e-90, ROUNDS, 5) <= 1e-15


def test_clear_differences_are_called_and_the_rest_goes_on() -> None:
    test = SequentialTest(["up", "down", "small"], first=3, margin=None, higher_is_better=True)
    for _ in range(3):
        seeds = test.seeds
        assert seeds is not None
        means = {"up": 0.2, "down": -0.2, "small": 0.01}
        test.add({name: found(means[name], seeds=seeds) for name in test.undecided})
    decisions = {each.variant: each.decision for done in test.done for each in done.variants}
    assert decisions == {"up": "better", "down": "worse", "small": "undecided"}
    assert test.undecided == ["small"]
    assert [done.seeds for done in test.done] == [3, 4, 5]
    for done in test.done:
        assert done.spent == pytest.approx(ALPHA * done.seeds / MOST_SEEDS)
        for each in done.variants:  # interval, p-value and decision agree
            assert each.interval is not None
            assert each.p_value is not None
            called = each.decision in ("better", "worse")
            assert called == (each.interval.low > 0 or each.interval.high < 0) == (each.p_value <= each.level)
    assert test.done[-1].variants[0].tests == 1  # Holm: the other two were called
    added = [len(done.variants) + 1 for done in test.done]  # runs per seed
    assert [done.runs for done in test.done] == [12, 12 + added[1], 12 + added[1] + added[2]]


def test_lower_is_better() -> None:
    test = SequentialTest(["a"], first=5, margin=None, higher_is_better=False)
    assert test.add({"a": found(-0.3, seeds=5)}).variants[0].decision == "better"


def test_within_the_margin() -> None:
    test = SequentialTest(["a", "b"], first=5, margin=0.05, higher_is_better=True)
    done = test.add({"a": found(0.001, seeds=5, noise=0.004), "b": found(0.06, seeds=5, noise=0.03)})
    assert [each.decision for each in done.variants] == ["within the margin", "undecided"]
    assert done.variants[1].tests == 2  # it still counts in Holm's correction


def test_a_decision_that_is_unlikely_is_given_up() -> None:
    test = SequentialTest(["equal", "close"], first=8, margin=None, higher_is_better=True)
    done = test.add({"equal": found(0.0, seeds=8), "close": found(0.012, seeds=8)})
    assert [each.decision for each in done.variants] == ["unlikely to be decided", "undecided"]


def test_identical_predictions() -> None:
    same = components(np.zeros((3, 50)))
    for margin, decision in ((None, "unlikely to be decided"), (0.01, "within the margin")):
        test = SequentialTest(["a"], first=3, margin=margin, higher_is_better=True)
        assert test.add({"a": same}).variants[0].decision == decision
        assert test.seeds is None


def test_noise_that_cannot_be_estimated_decides_nothing() -> None:
    equal = components(np.tile([[1.0, 0.0, 0.0]], (3, 1)))
    test = SequentialTest(["a", "b"], first=3, margin=None, higher_is_better=True)
    done = test.add({"a": equal, "b": None})
    assert [(each.decision, each.interval) for each in done.variants] == [("undecided", None)] * 2


def test_a_lost_variant_still_counts() -> None:
    test = SequentialTest(["a", "b"], first=3, margin=None, higher_is_better=True)
    test.exclude("b")
    assert test.add({"a": found(0.01, seeds=3)}).variants[0].tests == 2
    assert test.undecided == ["a"]


def test_the_last_round_ends_it() -> None:
    test = SequentialTest(["a"], first=19, margin=None, higher_is_better=True)
    while (seeds := test.seeds) is not None:
        test.add({"a": found(0.0045, seeds=seeds)})
    assert [done.seeds for done in test.done] == [19, 20]
    assert test.undecided == ["a"]
    assert test.done[-1].spent == pytest.approx(ALPHA)
