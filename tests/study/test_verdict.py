"""What a study may call a difference, and what it says about it."""

from __future__ import annotations

import numpy as np
import pytest

from attngraft.results.measured import ClosedForm, MeanScore, macro_f1
from attngraft.results.study import Difference
from attngraft.study.verdict import compare_all, compare_parts, compare_statistics, corrected

N = 400


def runs(accuracy: float, seeds: int, *, stream: int = 0) -> dict[int, np.ndarray]:
    """Scores of `seeds` runs; all runs agree on most examples, as real ones do."""
    difficulty = np.random.default_rng(99).random(N)
    generator = np.random.default_rng(stream)
    return {seed: (difficulty + generator.normal(0, 0.02, N) < accuracy).astype(float) for seed in range(seeds)}


def compare_scores(
    baseline: dict[int, np.ndarray],
    variant: dict[int, np.ndarray],
    *,
    binary: bool,
    higher_is_better: bool = True,
) -> Difference:
    first, second = ({seed: MeanScore(s, binary=binary) for seed, s in arm.items()} for arm in (baseline, variant))
    found = compare_statistics(first, second, higher_is_better=higher_is_better)
    assert found is not None
    return found


def test_clear_gain_and_clear_loss() -> None:
    low, high = runs(0.6, 3), runs(0.8, 3, stream=1)
    gain, loss = (
        compare_scores(low, high, binary=True),
        compare_scores(high, low, binary=True),
    )
    assert (gain.verdict, loss.verdict) == ("better", "worse")
    assert gain.mean == pytest.approx(-loss.mean) == pytest.approx(0.2, abs=0.06)
    assert gain.why.startswith("the 95% interval over 3 seeds and 400 examples, +")
    assert gain.why.endswith(", lies above zero")
    assert loss.why.endswith(", lies below zero")
    assert gain.p_source == "crossed over seeds and examples"
    assert gain.interval is not None
    assert gain.p_value is not None
    assert gain.interval.low > 0
    assert gain.p_value < 0.05
    assert gain.examples == N
    assert [test.seed for test in gain.mcnemar] == [0, 1, 2]


def test_lower_is_better_turns_the_verdict_and_not_the_sign() -> None:
    found = compare_scores(runs(0.6, 3), runs(0.8, 3, stream=1), binary=True, higher_is_better=False)
    assert found.verdict == "worse"
    assert found.mean > 0


def test_noise_is_called_noise() -> None:
    found = compare_scores(runs(0.7, 3), runs(0.7, 3, stream=1), binary=True)
    assert found.verdict == "inside the noise"
    assert "contain" in found.why


def test_one_seed_never_gives_a_verdict() -> None:
    found = compare_scores(runs(0.5, 1), runs(0.9, 1, stream=1), binary=True)
    assert found.verdict == "inside the noise"
    assert found.bootstrap.low > 0
    assert (found.t, found.interval, found.p_source) == (None, None, "exact McNemar")
    assert (found.detectable, found.seeds_for_point, found.examples_for_point) == (None, None, None)
    assert found.p_value == found.mcnemar[0].p_value < 1e-6
    assert "noise between seeds is unknown" in found.why
    assert "McNemar" in found.why


def test_identical_predictions() -> None:
    found = compare_scores(runs(0.7, 3), runs(0.7, 3), binary=True)
    assert (found.mean, found.bootstrap.low, found.bootstrap.high, found.p_value) == (0, 0, 0, 1)
    assert found.verdict == "inside the noise"
    assert found.why.startswith("no difference could be seen in 400 examples: in all 3 seeds")
    assert found.interval is not None
    assert (found.interval.low, found.interval.high, found.detectable) == (0, 0, None)


def test_seeds_that_agree_exactly_give_no_certainty() -> None:
    baseline = {seed: np.zeros(N) for seed in range(2)}
    variant = {seed: np.r_[np.ones(100), np.zeros(N - 100)] for seed in range(2)}
    found = compare_scores(baseline, variant, binary=True)
    assert (found.t, found.interval, found.p_value, found.verdict) == (None, None, None, "inside the noise")
    assert "exactly +0.25" in found.why


def test_a_metric_that_is_undefined_for_a_run_is_not_compared() -> None:
    scores = {seed: MeanScore(np.zeros(3)) for seed in range(2)}
    undefined = {**scores, 1: MeanScore(np.array([0, np.nan, 0]))}
    assert compare_statistics(scores, undefined, higher_is_better=True) is None


def test_scores_that_are_not_binary() -> None:
    generator = np.random.default_rng(0)
    baseline = {seed: generator.normal(2.0, 0.3, N) for seed in range(4)}
    variant = {seed: scores - 0.5 + generator.normal(0, 0.1, N) for seed, scores in baseline.items()}
    found = compare_scores(baseline, variant, binary=False, higher_is_better=False)
    assert (found.verdict, found.mcnemar) == ("better", [])
    one = compare_scores({0: baseline[0]}, {0: variant[0]}, binary=False)
    assert (one.p_value, one.verdict) == (None, "inside the noise")


def test_only_common_seeds_are_compared() -> None:
    found = compare_scores(runs(0.6, 3), {1: runs(0.8, 2, stream=1)[1]}, binary=True)
    assert [test.seed for test in found.mcnemar] == [1]


def test_variants_that_share_resamples_are_compared_as_if_alone() -> None:
    """Bit for bit, for scores and for another metric, with a variant that lacks a seed and one that is undefined."""
    generator, target = np.random.default_rng(0), np.arange(N) % 5

    def f1(right: float) -> dict[int, ClosedForm]:
        predicted = [np.where(generator.random(N) < right, target, generator.integers(5, size=N)) for _ in range(3)]
        return {seed: macro_f1(each, target, classes=5) for seed, each in enumerate(predicted)}

    def losses() -> dict[int, MeanScore]:
        return {seed: MeanScore(generator.normal(size=N)) for seed in range(3)}

    scores, other = losses(), f1(0.6)
    undefined = scores | {1: MeanScore(np.full(N, np.nan))}
    variants = [losses(), losses(), {seed: losses()[seed] for seed in (0, 2)}, undefined, scores]
    pairs = [*((scores, each) for each in variants), *((other, f1(right)) for right in (0.5, 0.7))]
    alone = [compare_statistics(*pair, higher_is_better=True) for pair in pairs]
    assert compare_all(pairs, higher_is_better=True) == alone
    assert [each is None for each in alone] == [False, False, False, True, False, False, False]


def test_correction_over_variants_changes_p_alone() -> None:
    found = [compare_scores(runs(0.6, 3), runs(a, 3, stream=i + 1), binary=True) for i, a in enumerate((0.62, 0.8))]
    after = corrected([found[0], None, found[1]])
    assert after[1] is None
    assert after[0] is not None
    assert after[2] is not None
    assert after[2].p_holm == pytest.approx(min(1, 2 * found[1].p_value))
    assert after[2].p_value == found[1].p_value
    assert [d.verdict for d in after if d] == [d.verdict for d in found]


def gains_and_losses(*, gained: int, lost: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of a baseline and of a variant that is right on `gained` examples more and wrong on `lost` others."""
    baseline, variant = np.zeros(N), np.zeros(N)
    variant[:gained] = 1
    baseline[N - lost :] = 1
    return baseline, variant


def test_seeds_that_differ_allow_no_verdict_whatever_the_bootstrap_says() -> None:
    """Skewed: the bootstrap's lower side ends at the two low seeds, the interval is symmetric and reaches further."""
    gains = (1.6, 1.6, 3.1)  # of every example alike
    scores = {seed: np.full(N, gain) for seed, gain in enumerate(gains)}
    found = compare_scores({seed: np.zeros(N) for seed in scores}, scores, binary=False)
    assert found.bootstrap.low > 0
    assert found.t is not None
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx(
        (found.t.low, found.t.high)
    )  # no noise of examples
    assert found.verdict == "inside the noise"
    assert found.why.endswith(", contains zero")


def test_examples_that_differ_much_allow_no_verdict_whatever_the_t_interval_says() -> None:
    """All seeds agree on a small gain, which other examples need not show."""
    pairs = [gains_and_losses(gained=gained, lost=148) for gained in (152, 152, 153)]
    baselines, variants = ({seed: pair[side] for seed, pair in enumerate(pairs)} for side in (0, 1))
    found = compare_scores(baselines, variants, binary=True)
    assert found.t is not None
    assert found.t.low > 0
    assert found.interval is not None
    assert found.interval.low < 0 < found.interval.high
    assert found.verdict == "inside the noise"


def test_one_example_gives_no_verdict() -> None:
    scores = {seed: MeanScore(np.array([value])) for seed, value in enumerate((1.0, 1.1, 0.9))}
    found = compare_statistics({seed: MeanScore(np.zeros(1)) for seed in scores}, scores, higher_is_better=True)
    assert found is not None
    assert (found.interval, found.verdict) == (None, "inside the noise")
    assert found.why.startswith("with one example the noise between examples is unknown")


def test_what_it_takes_to_find_a_point() -> None:
    first, second = ({seed: MeanScore(s) for seed, s in runs(0.7, 3, stream=i).items()} for i in range(2))
    found = compare_statistics(first, second, higher_is_better=True, point=0.01)
    assert found is not None
    assert found.detectable is not None
    assert found.detectable > 0.01
    assert found.seeds_for_point is not None
    assert found.seeds_for_point > 3
    assert found.examples_for_point is None or found.examples_for_point > N


def test_a_part_has_the_interval_that_would_decide_its_verdict() -> None:
    """A metric with a single part: its interval is that of the metric, also with folds and for one seed."""
    generator = np.random.default_rng(0)
    right = generator.binomial(9, 0.5, size=(2, 3, 40)).astype(float)
    counts = [[np.stack([each, np.full(40, 9.0)], axis=1) for each in seeds] for seeds in right]
    before, after = ([ClosedForm(each, lambda sums: sums[:, :1] / sums[:, 1:]) for each in seeds] for seeds in counts)
    for seeds, folds in ((3, None), (3, 5), (1, None)):
        pair = dict(enumerate(before[:seeds])), dict(enumerate(after[:seeds]))
        (whole,) = compare_all([pair], higher_is_better=True, folds=folds)
        assert whole is not None
        expected = whole.bootstrap if seeds == 1 else whole.interval
        (found,) = compare_parts(before[:seeds], after[:seeds], folds=folds)
        assert found is not None and expected is not None
        assert [found.low, found.point, found.high] == pytest.approx([expected.low, expected.point, expected.high])
