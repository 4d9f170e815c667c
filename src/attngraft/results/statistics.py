"""The statistics of a paired comparison, on plain arrays.

Notation: `differences` is (S, N), the variant's score minus the baseline's for S seeds and N examples; both runs of a seed
share initialization, batches and examples, so every comparison is paired twice: by seed and by example.

Two sources of chance stand behind a mean difference: which seeds were drawn and which examples the validation set holds.
The crossed bootstrap asks about both. The t-interval asks about seeds only, with these examples taken as given.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from attngraft.results.study import Interval, McNemar

CONFIDENCE = 0.95
RESAMPLES = 2000
_AT_ONCE = 2**18  #: counts that are drawn together: as many as stay in a cache


def crossed_bootstrap(
    differences: np.ndarray, *, resamples: int = RESAMPLES, confidence: float = CONFIDENCE, random_state: int = 0
) -> Interval:
    """Interval of the mean difference, seeds and examples resampled independently of each other.

    Resample r draws S seeds and N examples with replacement; with their counts a (S,) and b (N,) its mean is
    a' D b / (S N) (the pigeonhole bootstrap: Owen 2007, "The pigeonhole bootstrap", section 3, which is conservative for
    noise that belongs to one seed and one example). Percentiles of these means would be too narrow where seeds are few:
    resampling S seeds gives only (S - 1) / S of the variance V = s^2 / S of their mean, and percentiles imply the normal
    quantile z where Student's t at S - 1 degrees of freedom is due. So each side's length l of the percentile interval
    becomes

        sqrt(l^2 + V (t^2 - z^2 (S - 1) / S)).

    Where only seeds vary this is close to the t-interval; with many seeds it is the plain percentile interval, and also
    with one, where only examples are resampled and seed noise is not in it.

    Args:
        differences: (S, N), finite.
        resamples: how many.
        confidence: of the two-sided interval.
        random_state: the same value gives the same interval.

    Raises:
        ValueError: not (S, N), empty, or not finite.
    """
    differences = _checked(differences)
    means = _resampled_means(differences, resamples, np.random.default_rng(random_state))
    return interval_of(means, differences.mean(axis=1), point=float(differences.mean()), confidence=confidence)


def interval_of(
    means: np.ndarray, by_seed: np.ndarray, *, point: float | None = None, confidence: float = CONFIDENCE
) -> Interval:
    """The percentile interval of resampled `means`, widened for the few seeds as `crossed_bootstrap` says.

    Args:
        means: of any statistic, seeds and examples resampled.
        by_seed: the statistic of each seed; their mean is `point`.
    """
    seeds, point = len(by_seed), float(by_seed.mean()) if point is None else point
    tail = (1 - confidence) / 2
    low, high = (float(value) for value in np.quantile(means, [tail, 1 - tail]))
    if seeds > 1:
        seed_variance = float(by_seed.var(ddof=1)) / seeds
        student, normal = float(stats.t.isf(tail, seeds - 1)), float(stats.norm.isf(tail))
        lacking = seed_variance * (student**2 - normal**2 * (seeds - 1) / seeds)
        low, high = (
            point - float(np.hypot(point - low, lacking**0.5)),
            point + float(np.hypot(high - point, lacking**0.5)),
        )
    return Interval(point=point, low=min(low, point), high=max(high, point))


def t_interval(by_seed: Sequence[float] | np.ndarray, *, confidence: float = CONFIDENCE) -> Interval | None:
    """Student's interval of the mean of one difference per seed.

    None with one seed, and where all seeds agree exactly on a difference other than zero: such agreement is chance (few
    examples give few possible values) and says nothing of seed noise. Where all are exactly zero it is [0, 0].
    """
    values = np.asarray(by_seed, dtype=float)
    mean, count = float(values.mean()), len(values)
    if count < 2:
        return None
    if _all_equal(values):
        return Interval(point=0.0, low=0.0, high=0.0) if not values.any() else None
    half = float(stats.t.isf((1 - confidence) / 2, count - 1) * values.std(ddof=1) / np.sqrt(count))
    return Interval(point=mean, low=mean - half, high=mean + half)


def paired_t_p(by_seed: Sequence[float] | np.ndarray) -> float | None:
    """Two-sided p-value of the paired t-test over seeds; None, or 1 for no difference at all, as in `t_interval`."""
    values = np.asarray(by_seed, dtype=float)
    if len(values) < 2:
        return None
    if _all_equal(values):
        return 1.0 if not values.any() else None
    return float(stats.ttest_1samp(values, 0.0).pvalue)


def mcnemar(baseline: np.ndarray, variant: np.ndarray, *, seed: int) -> McNemar:
    """The exact (binomial) McNemar test of two runs of one seed; scores (N,) are 0 or 1.

    Under equal accuracy, the examples that only one of the two gets right fall to either with probability 1/2.
    """
    only_variant = int(np.sum((variant > 0.5) & (baseline <= 0.5)))
    only_baseline = int(np.sum((baseline > 0.5) & (variant <= 0.5)))
    split = only_variant + only_baseline
    p_value = float(stats.binomtest(only_variant, split, 0.5).pvalue) if split else 1.0
    return McNemar(seed=seed, only_variant=only_variant, only_baseline=only_baseline, p_value=p_value)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction: the k-th smallest of m is multiplied by m - k + 1, then made monotone and at most 1.

    A missing p-value stays missing; it still counts as a comparison that was made, so the others are not favoured by it.
    """
    known = [(p, place) for place, p in enumerate(p_values) if p is not None]
    corrected: list[float | None] = [None] * len(p_values)
    so_far = 0.0
    for rank, (p, place) in enumerate(sorted(known)):
        so_far = max(so_far, min(1.0, p * (len(p_values) - rank)))
        corrected[place] = so_far
    return corrected


def _resampled_means(differences: np.ndarray, resamples: int, generator: np.random.Generator) -> np.ndarray:
    """(resamples,) means.

    Examples that are scored alike in all seeds add nothing wherever they are drawn, so only how often one of the others is
    drawn is drawn (binomial), and then which. They are few, and this many times quicker.
    """
    seeds, examples = differences.shape
    telling = differences[:, differences.any(axis=0)]
    kinds = telling.shape[1]
    drawn = generator.binomial(examples, kinds / examples, size=resamples)
    by_seed = np.zeros((resamples, seeds))
    rows = max(1, _AT_ONCE // max(kinds, 1))
    for start in range(0, resamples if kinds else 0, rows):
        sizes = drawn[start : start + rows]
        places = generator.integers(kinds, size=sizes.sum()) + np.repeat(np.arange(len(sizes)) * kinds, sizes)
        counts = np.bincount(places, minlength=len(sizes) * kinds).reshape(len(sizes), kinds)
        by_seed[start : start + rows] = counts.astype(float) @ telling.T
    weights = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
    means: np.ndarray = (by_seed * weights).sum(axis=1) / (seeds * examples)
    return means


def _checked(differences: np.ndarray) -> np.ndarray:
    differences = np.asarray(differences, dtype=float)
    if differences.ndim != 2 or differences.size == 0:
        raise ValueError(f"differences must be (seeds, examples) and not empty, not of shape {differences.shape}")
    if not np.isfinite(differences).all():
        raise ValueError("differences must be finite")
    return differences


def _all_equal(values: np.ndarray) -> bool:
    """Equal up to the rounding of a mean."""
    return bool(np.ptp(values) <= 1e-12 * max(1.0, float(np.abs(values).max())))
