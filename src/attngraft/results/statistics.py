"""Statistics of paired comparisons on plain arrays, and epochs to the baseline's best mean.

Notation: `differences` (S, N) is the variant's score minus the baseline's for S seeds and N examples. Both runs of a seed
share initialization, batches and examples, so all comparisons are paired by seed and by example.

A mean difference has two sources of random variation: the seeds and the validation examples. The crossed bootstrap covers
both; the t-interval covers the seeds for fixed examples. The interval that decides verdicts is in `results.crossed`.
"""

import copy
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from scipy import special

from attngraft.results.crossed import CONFIDENCE, Components, components_of_metric
from attngraft.results.measured import ClosedForm, Statistic, mean_of_defined
from attngraft.results.study import EpochsToBaseline, Interval, McNemar

RESAMPLES, FEWEST = 2000, 200
_KEPT = 2**26  #: maximum number of counts kept in memory for the next comparison
_CHUNK = 2**18  #: number of counts drawn at a time, small enough for the CPU's cache


def crossed_bootstraps(
    differences: Sequence[np.ndarray], *, resamples: int = RESAMPLES, random_state: int = 0
) -> list[Interval]:
    """Return the 95% bootstrap interval of each mean difference, resampling both seeds and examples.

    Each resample draws S seeds and N examples with replacement. With their counts a (S,) and b (N,), its mean is
    a' D b / (S N) (Owen 2007, "The pigeonhole bootstrap", section 3; conservative for noise specific to one seed and one
    example). Percentiles of these means are too narrow for few seeds: resampling S seeds yields only (S - 1) / S of the
    variance V = s^2 / S of their mean, and percentiles imply the normal quantile z instead of Student's t with S - 1 degrees
    of freedom. Therefore each half-length l of the percentile interval becomes

        sqrt(l^2 + V (t^2 - z^2 (S - 1) / S)).

    If only seeds vary, this is close to the t-interval; for many seeds, it is the plain percentile interval. With one seed,
    only examples are resampled, so the interval does not include the noise between seeds.

    Args:
        differences: arrays of finite differences, (S, N) each; those with equally many nonzero examples share one drawing
            of resamples.
        resamples: number of resamples.
        random_state: seed of the resampling.

    Raises:
        ValueError: an array is not (S, N), empty, or not finite.
    """
    arrays = [np.asarray(each, dtype=float) for each in differences]
    alike: dict[tuple[int, ...], list[int]] = {}
    for index, array in enumerate(arrays):
        if array.ndim != 2 or array.size == 0:
            raise ValueError(f"differences must be (seeds, examples) and not empty, got shape {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError("differences must be finite")
        alike.setdefault((*array.shape, int(array.any(axis=0).sum())), []).append(index)
    means: dict[int, np.ndarray] = {}
    for indices in alike.values():
        drawn = _resampled_means([arrays[index] for index in indices], resamples, np.random.default_rng(random_state))
        means |= zip(indices, drawn, strict=True)
    return [
        interval_of(means[index], array.mean(axis=1), point=float(array.mean())) for index, array in enumerate(arrays)
    ]


def crossed_bootstraps_of(
    baseline: Sequence[Statistic],
    variants: Sequence[Sequence[Statistic]],
    *,
    resamples: int = RESAMPLES,
    random_state: int = 0,
) -> list[tuple[Interval, Components]]:
    """Return each variant's bootstrap interval of the difference in any metric, and its variance components.

    The baseline is resampled once, as in `crossed_bootstraps`. For every resample, the metric is recomputed from the
    examples' counts for both runs of a pair. A part that is undefined for either run (a class missing from the resample) is
    omitted for both. Resamples without any defined part are dropped.

    Args:
        baseline: the baseline's statistic for each seed.
        variants: each variant's statistics, for the same seeds and the same examples in the same order.
        resamples: number of resamples.
        random_state: seed of the resampling.

    Raises:
        ValueError: the metric of all examples is undefined for a seed.
    """
    seeds, examples = len(baseline), baseline[0].examples
    by_seed = paired_differences(baseline, variants, np.ones((1, examples)))[:, 0]
    if not np.isfinite(by_seed).all():
        raise ValueError("the metric is undefined for a seed")
    counts, generator = _resampled_counts(examples, resamples, random_state)
    drawn = np.concatenate([paired_differences(baseline, variants, each) for each in counts], axis=1)
    weights = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
    means = (drawn * weights).sum(axis=2) / seeds
    return [
        (
            interval_of(mean[np.isfinite(mean)], values),
            components_of_metric(values, each, examples=examples),
        )
        for mean, values, each in zip(means, by_seed, drawn, strict=True)
    ]


def crossed_bootstraps_of_parts(
    baseline: Sequence[ClosedForm], variant: Sequence[ClosedForm], *, resamples: int = RESAMPLES, random_state: int = 0
) -> list[tuple[Interval, Components] | None]:
    """Return `crossed_bootstraps_of` for each part of a metric, such as the IoU of each class.

    Resamples in which a part is undefined are dropped. The examples of a part are those that define it, in the run with
    the fewest: a class of three images has a quantile of Student's t with two degrees of freedom.

    Args:
        baseline: the baseline's statistic for each seed.
        variant: the variant's statistics, for the same seeds and the same examples in the same order.
        resamples: number of resamples.
        random_state: seed of the resampling.

    Returns:
        One pair per part; None if the part is undefined for a seed, or defined by fewer than two examples.
    """
    seeds = len(baseline)

    def differences(counts: np.ndarray) -> np.ndarray:  # (R, S, C)
        pairs = zip(baseline, variant, strict=True)
        return np.stack([after.parts(counts) - before.parts(counts) for before, after in pairs], axis=1)

    examples = np.min([run.examples_of_parts() for run in (*baseline, *variant)], axis=0)
    by_seed = differences(np.ones((1, baseline[0].examples)))[0]
    counts, generator = _resampled_counts(baseline[0].examples, resamples, random_state)
    drawn = np.concatenate([differences(each) for each in counts])
    weights = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
    means = (drawn * weights[..., None]).sum(axis=1) / seeds
    found: list[tuple[Interval, Components] | None] = []
    for part, number in enumerate(examples.tolist()):
        values, mean = by_seed[:, part], means[:, part]
        if number < 2 or not np.isfinite(values).all():
            found.append(None)
            continue
        estimated = components_of_metric(values, drawn[:, :, part], examples=number)
        found.append((interval_of(mean[np.isfinite(mean)], values), estimated))
    return found


def _resampled_counts(
    examples: int, resamples: int, random_state: int
) -> tuple[Iterator[np.ndarray], np.random.Generator]:
    """Return how often each resample contains each example, in chunks of resamples, and a generator for the seeds."""
    counts: Iterable[np.ndarray]
    if examples * resamples <= _KEPT:
        counts, generator = _kept_counts(examples, resamples, random_state)
        generator = copy.deepcopy(generator)
    else:
        generator = np.random.default_rng(random_state)
        counts = _counts(examples, resamples, generator)
    # the memory order that scipy.sparse expects
    return (np.asfortranarray(each, dtype=float) for each in counts), generator


def _counts(examples: int, resamples: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield how often each resample contains each example, (R, N), in chunks of resamples."""
    rows = max(1, _CHUNK // examples)
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        yield generator.multinomial(examples, np.full(examples, 1 / examples), size=size)


@functools.lru_cache(maxsize=1)  # drawing takes longer than most metrics, and all variants use the same resamples
def _kept_counts(examples: int, resamples: int, random_state: int) -> tuple[list[np.ndarray], np.random.Generator]:
    generator = np.random.default_rng(random_state)
    return [each.astype(np.uint8) for each in _counts(examples, resamples, generator)], generator


def paired_differences(
    baseline: Sequence[Statistic], variants: Sequence[Sequence[Statistic]], counts: np.ndarray
) -> np.ndarray:
    """Return variant minus baseline per variant, resample and seed, (V, R, S).

    Each difference is over the parts that are defined for both runs of the seed.
    """
    result = np.empty((len(variants), len(counts), len(baseline)))
    for seed, (first, *others) in enumerate(zip(baseline, *variants, strict=True)):
        before = first.parts(counts)
        for index, other in enumerate(others):
            after = other.parts(counts)
            defined = np.isfinite(before) & np.isfinite(after)
            means = [mean_of_defined(np.where(defined, parts, np.nan)) for parts in (before, after)]
            result[index, :, seed] = means[1] - means[0]
    return result


def affordable_resamples(baseline: Sequence[Statistic], variant: Sequence[Statistic], *, seconds: float = 60.0) -> int:
    """Return the number of resamples, from `FEWEST` to `RESAMPLES`, that take about `seconds` to compute.

    The estimate assumes one CPU core (`bench/resampling.py` compares it with measured times).
    """
    every = [*baseline, *variant]
    nanoseconds = 40 * every[0].examples + sum(statistic.cost for statistic in every)
    return int(np.clip(1e9 * seconds / nanoseconds, FEWEST, RESAMPLES))


def interval_of(means: np.ndarray, by_seed: np.ndarray, *, point: float | None = None) -> Interval:
    """Return the 95% interval of resampled `means`, widened for few seeds as in `crossed_bootstraps`.

    Args:
        means: resampled values of any statistic, with seeds and examples resampled.
        by_seed: value of the statistic for each seed.
        point: point estimate; the mean of `by_seed` by default.
    """
    seeds, point = len(by_seed), float(by_seed.mean()) if point is None else point
    tail = (1 - CONFIDENCE) / 2
    low, high = (float(value) for value in np.quantile(means, [tail, 1 - tail]))
    if seeds > 1:
        seed_variance = float(by_seed.var(ddof=1)) / seeds
        student, normal = -float(special.stdtrit(seeds - 1, tail)), -float(special.ndtri(tail))
        lacking = seed_variance * (student**2 - normal**2 * (seeds - 1) / seeds)
        low, high = (
            point - float(np.hypot(point - low, lacking**0.5)),
            point + float(np.hypot(high - point, lacking**0.5)),
        )
    return Interval(point=point, low=min(low, point), high=max(high, point))


def t_interval(by_seed: Sequence[float] | np.ndarray) -> Interval | None:
    """Return Student's 95% t interval of the mean difference over seeds, given one difference per seed.

    Returns None for one seed, and if all seeds have exactly the same nonzero difference: this happens by chance if there are
    few examples, and is no estimate of the noise between seeds. Returns [0, 0] if all differences are zero.
    """
    values = np.asarray(by_seed, dtype=float)
    mean, count = float(values.mean()), len(values)
    if count < 2:
        return None
    if _all_equal(values):
        return Interval(point=0.0, low=0.0, high=0.0) if not values.any() else None
    half = -float(special.stdtrit(count - 1, (1 - CONFIDENCE) / 2) * values.std(ddof=1) / np.sqrt(count))
    return Interval(point=mean, low=mean - half, high=mean + half)


def mcnemar(baseline: np.ndarray, variant: np.ndarray, *, seed: int) -> McNemar:
    """Apply the exact (binomial) McNemar test to two runs of one seed, with scores (N,) of 0 or 1.

    Under the null hypothesis of equal accuracy, an example that only one run classifies correctly is equally likely to be
    classified correctly by either run.
    """
    only_variant = int(np.sum((variant > 0.5) & (baseline <= 0.5)))
    only_baseline = int(np.sum((baseline > 0.5) & (variant <= 0.5)))
    split = only_variant + only_baseline
    p_value = min(1.0, 2 * float(special.bdtr(min(only_variant, only_baseline), split, 0.5))) if split else 1.0
    return McNemar(seed=seed, only_variant=only_variant, only_baseline=only_baseline, p_value=p_value)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Apply Holm's step-down correction to m p-values.

    The k-th smallest is multiplied by m - k + 1; the results are made monotone and capped at 1. A missing p-value stays
    None, but is included in m.
    """
    known = [(p, index) for index, p in enumerate(p_values) if p is not None]
    corrected: list[float | None] = [None] * len(p_values)
    so_far = 0.0
    for rank, (p, index) in enumerate(sorted(known)):
        so_far = max(so_far, min(1.0, p * (len(p_values) - rank)))
        corrected[index] = so_far
    return corrected


def _resampled_means(
    differences: Sequence[np.ndarray], resamples: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """Return the mean of each resample, (resamples,), of arrays of one shape with equally many nonzero examples.

    Examples with a difference of zero in all seeds contribute nothing, so only the number of nonzero examples in a resample
    (binomial) and these examples are drawn. Most examples are zero, which makes this many times faster.
    """
    seeds, examples = differences[0].shape
    informative = [each[:, each.any(axis=0)] for each in differences]
    kinds = informative[0].shape[1]
    drawn = generator.binomial(examples, kinds / examples, size=resamples)
    by_seed = np.zeros((len(differences), resamples, seeds))
    rows, few = (max(1, size // max(kinds, 1)) for size in (_CHUNK, _CHUNK // 8))
    counts = np.empty((min(rows, resamples), kinds))
    for start in range(0, resamples if kinds else 0, rows):
        block = counts[: resamples - start]
        for first in range(0, len(block), few):  # small arrays, because the system clears the memory of large ones
            part = block[first : first + few]
            sizes = drawn[start + first : start + first + len(part)]
            indices = generator.integers(kinds, size=sizes.sum()) + np.repeat(np.arange(len(sizes)) * kinds, sizes)
            part[:] = np.bincount(indices, minlength=part.size).reshape(part.shape)
        for sums, each in zip(by_seed, informative, strict=True):
            sums[start : start + rows] = block @ each.T
    weights = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
    return list((by_seed * weights).sum(axis=2) / (seeds * examples))


def _all_equal(values: np.ndarray) -> bool:
    """Return whether all values are equal, up to the rounding error of a mean."""
    return bool(np.ptp(values) <= 1e-12 * max(1.0, float(np.abs(values).max())))


class RunCurves(Protocol):
    """Interface of a finished run's curves, implemented by `RunSummary`."""

    @property
    def seed(self) -> int: ...

    @property
    def curve(self) -> Mapping[str, Sequence[float]]:
        """Key ("val/top1") -> one value per evaluation."""


def epochs_to_baseline(
    runs: Sequence[RunCurves], baseline: Sequence[RunCurves], *, key: str, higher_is_better: bool
) -> EpochsToBaseline | None:
    """Return the epochs at which each seed and the mean over seeds first reach the baseline's best mean.

    The ratio, as in BiSA's Fig. 3 but for means over seeds, is the first epoch at which the variant's mean curve reaches the
    best value of the baseline's mean curve, divided by the epoch at which the baseline itself reaches it.

    Args:
        runs: the variant's finished runs; if they are the baseline's, the ratio is 1.
        baseline: the baseline's finished runs.
        key: key of the curve ("val/top1"); values that are not finite never reach the target.
        higher_is_better: direction of the metric.

    Returns:
        The epochs; None if the variant or the baseline has no run, or the baseline has no finite value.
    """
    sign = 1 if higher_is_better else -1
    means = enumerate(_mean_curve(baseline, key), start=1)
    finite = [(sign * value, -epoch) for epoch, value in means if math.isfinite(value)]
    if not runs or not finite:
        return None
    best, baseline_epoch = max(finite)
    baseline_epoch = -baseline_epoch

    def first(curve: Sequence[float]) -> int | None:
        return next((epoch for epoch, value in enumerate(curve, start=1) if sign * value >= best), None)

    reached = first(_mean_curve(runs, key))
    return EpochsToBaseline(
        target=sign * best,
        by_seed={run.seed: first(run.curve[key]) for run in runs},
        of_mean_curve=reached,
        baseline_epoch=baseline_epoch,
        ratio=None if reached is None else reached / baseline_epoch,
        speed_up=None if reached is None else baseline_epoch / reached,
    )


def _mean_curve(runs: Sequence[RunCurves], key: str) -> list[float]:
    return [math.fsum(values) / len(values) for values in zip(*(run.curve[key] for run in runs), strict=False)]
