"""Differences between a variant and the baseline: intervals, tests, and the verdict.

A variant is called better or worse if the interval over seeds and examples (`results.crossed`) excludes zero. With one seed
there is no such interval, so there is no verdict.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from attngraft.results.crossed import Components, components
from attngraft.results.measured import ClosedForm, MeanScore, Statistic
from attngraft.results.power import detectable, examples_to_find, seeds_to_find
from attngraft.results.statistics import (
    affordable_resamples,
    crossed_bootstraps,
    crossed_bootstraps_of,
    crossed_bootstraps_of_parts,
    holm,
    mcnemar,
    paired_differences,
    t_interval,
)
from attngraft.results.study import Difference, Interval, McNemar, Spread, Verdict
from attngraft.results.wording import plural


def compare_statistics(
    baseline: Mapping[int, Statistic],
    variant: Mapping[int, Statistic],
    *,
    higher_is_better: bool,
    point: float | None = None,
) -> Difference | None:
    """Return the difference in a metric, variant minus baseline, over their common seeds.

    Means of scores are compared by the examples' score differences; any other metric is recomputed for every resample.

    Args:
        baseline: the baseline's statistic for each seed.
        variant: the variant's statistic for each seed, on the same examples in the same order.
        higher_is_better: direction of the metric.
        point: one point of the metric, for `seeds_for_point` and `examples_for_point`; None: these are not computed.

    Returns:
        The difference, or None if the metric is undefined for a run. `p_holm` is the uncorrected p-value until `corrected`
        is applied to all variants.
    """
    return compare_all([(baseline, variant)], higher_is_better=higher_is_better, point=point)[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """A difference in a metric between a variant and the baseline, over their common seeds."""

    by_seed: np.ndarray  #: difference of each seed, (S,)
    components: Components
    scores: np.ndarray | None = None  #: differences of scores, (S, N); None for a metric that is not a mean
    bootstrap: Interval | None = None  #: None for a mean of scores
    resamples: int | None = None  #: of `bootstrap`


Pair = tuple[Mapping[int, Statistic], Mapping[int, Statistic]]  #: baseline and variant, by seed


def estimate_all(pairs: Sequence[Pair]) -> list[Estimate | None]:
    """Return the difference of each pair, resampling the same baseline once; None if it is undefined for a seed."""
    found: dict[int, Estimate] = {}
    # same baseline and resamples -> index -> the variant's statistics, and the difference of each seed
    others: dict[tuple[tuple[Statistic, ...], int], dict[int, tuple[list[Statistic], np.ndarray]]] = {}
    for index, pair in enumerate(pairs):
        first, second = _common(pair)
        before, after = ([each.score for each in runs if isinstance(each, MeanScore)] for runs in (first, second))
        if len(before) == len(after) == len(first):
            scores = np.stack(after).astype(float) - np.stack(before).astype(float)
            by_seed = scores.mean(axis=1)
            if np.isfinite(by_seed).all():
                found[index] = Estimate(by_seed=by_seed, components=components(scores), scores=scores)
            continue
        by_seed = paired_differences(first, [second], np.ones((1, first[0].examples)))[0, 0]
        if np.isfinite(by_seed).all():
            others.setdefault((tuple(first), affordable_resamples(first, second)), {})[index] = second, by_seed
    for (same, resamples), variants in others.items():
        resampled = crossed_bootstraps_of(same, [runs for runs, _ in variants.values()], resamples=resamples)
        for (index, (_, by_seed)), (bootstrap, estimated) in zip(variants.items(), resampled, strict=True):
            found[index] = Estimate(by_seed=by_seed, components=estimated, bootstrap=bootstrap, resamples=resamples)
    return [found.get(index) for index in range(len(pairs))]


def _common(pair: Pair) -> tuple[list[Statistic], list[Statistic]]:
    """Return the statistics of the common seeds."""
    baseline, variant = pair
    seeds = sorted(baseline.keys() & variant.keys())
    return [baseline[seed] for seed in seeds], [variant[seed] for seed in seeds]


def compare_all(
    pairs: Sequence[Pair],
    *,
    higher_is_better: bool,
    point: float | None = None,
    folds: int | None = None,
) -> list[Difference | None]:
    """Return `compare_statistics` of each pair of baseline and variant, resampling the same baseline once.

    With `folds`, the interval is widened for the overlap of their training sets (`Components.with_folds`).
    """
    estimates = estimate_all(pairs)
    scores = {index: each.scores for index, each in enumerate(estimates) if each and each.scores is not None}
    bootstraps = dict(zip(scores, crossed_bootstraps(list(scores.values())), strict=True))
    found: list[Difference | None] = []
    for index, (pair, each) in enumerate(zip(pairs, estimates, strict=True)):
        if each is None:
            found.append(None)
            continue
        difference = _difference(
            each.by_seed,
            each.bootstrap or bootstraps[index],
            each.components.with_folds(folds),
            tests=_mcnemar_tests(pair),
            higher_is_better=higher_is_better,
            point=point,
            identical=each.scores is not None and not each.scores.any(),
        )
        found.append(dataclasses.replace(difference, resamples=each.resamples or difference.resamples))
    return found


def compare_parts(
    baseline: Sequence[ClosedForm], variant: Sequence[ClosedForm], *, folds: int | None = None
) -> list[Interval | None]:
    """Return the interval of the difference in each part of a metric, as it would decide a verdict.

    For one seed, these are bootstrap intervals over examples. None if there is none (`crossed_bootstraps_of_parts`).
    """
    resamples = affordable_resamples(baseline, variant)
    found = crossed_bootstraps_of_parts(baseline, variant, resamples=resamples)
    return [None if each is None else each[1].with_folds(folds).interval() or each[0] for each in found]


def _mcnemar_tests(pair: Pair) -> list[McNemar]:
    """Return the test of each common seed; none if scores are not 0 or 1."""
    baseline, variant = pair
    tests = []
    for seed in sorted(baseline.keys() & variant.keys()):
        before, after = baseline[seed], variant[seed]
        if not (isinstance(before, MeanScore) and isinstance(after, MeanScore) and before.binary and after.binary):
            return []
        tests.append(mcnemar(before.score, after.score, seed=seed))
    return tests


def _difference(
    by_seed: np.ndarray,
    bootstrap: Interval,
    estimated: Components,
    *,
    tests: list[McNemar],
    higher_is_better: bool,
    point: float | None,
    identical: bool = False,
) -> Difference:
    interval = estimated.interval()
    p_value = estimated.p_value() if len(by_seed) > 1 else (tests[0].p_value if tests else None)
    return Difference(
        mean=float(by_seed.mean()),
        bootstrap=bootstrap,
        t=t_interval(by_seed),
        p_value=p_value,
        p_holm=p_value,
        p_source="crossed over seeds and examples" if len(by_seed) > 1 else "exact McNemar",
        mcnemar=tests,
        verdict=_verdict(interval, higher_is_better),
        why=_why_identical(estimated) if identical else _why(interval, bootstrap, estimated, tests),
        interval=interval,
        examples=estimated.example_count,
        detectable=detectable(estimated),
        seeds_for_point=None if point is None else seeds_to_find(estimated, point),
        examples_for_point=None if point is None else examples_to_find(estimated, point),
    )


def corrected(differences: Sequence[Difference | None], *, untested: int = 0) -> list[Difference | None]:
    """Return the differences with Holm's correction, which changes p-values but not verdicts.

    Args:
        differences: one per variant, None if not compared.
        untested: number of additional variants that were stopped early. They count as non-significant tests, so that the
            correction keeps its level whatever the reason for stopping.
    """
    present = [difference for difference in differences if difference is not None]
    p_values = iter(holm([*(difference.p_value for difference in present), *[None] * untested]))
    return [None if each is None else dataclasses.replace(each, p_holm=next(p_values)) for each in differences]


def _verdict(interval: Interval | None, higher_is_better: bool) -> Verdict:
    if interval is None or interval.low <= 0 <= interval.high:
        return "inside the noise"
    return "better" if (interval.point > 0) == higher_is_better else "worse"


def _why_identical(estimated: Components) -> str:
    seeds = estimated.seed_count
    where = "in the one seed" if seeds == 1 else f"in all {seeds} seeds"
    return (
        f"no difference could be seen in {plural(estimated.example_count, 'example')}: {where} every example has exactly "
        "the baseline's score"
    )


def _why(interval: Interval | None, bootstrap: Interval, estimated: Components, tests: list[McNemar]) -> str:
    seeds = estimated.seed_count
    over_examples = f"over examples alone the 95% interval is {_shown(bootstrap)}"
    if seeds == 1:
        test = f"exact McNemar's p is {tests[0].p_value:.2g}, and " if tests else ""
        return (
            "with one seed the noise between seeds is unknown, so nothing is called better or worse; "
            f"{test}{over_examples}"
        )
    if estimated.example_count == 1:
        return "with one example the noise between examples is unknown, so nothing is called better or worse"
    if interval is None:
        return (
            f"all {seeds} seeds differ by exactly {bootstrap.point:+.3g}, which happens by chance and does not measure the "
            f"noise between seeds; {over_examples}"
        )
    where = "lies above" if interval.low > 0 else "lies below" if interval.high < 0 else "contains"
    counts = f"{seeds} seeds and {plural(estimated.example_count, 'example')}"
    return f"the 95% interval over {counts}, {_shown(interval)}, {where} zero"


def _shown(interval: Interval) -> str:
    """Format both ends with the number of decimals at which the larger end has three digits."""
    largest = max(abs(interval.low), abs(interval.high))
    decimals = 2 if largest == 0 else int(np.clip(2 - np.floor(np.log10(largest)), 0, 12))
    return f"{interval.low:+.{decimals}f} to {interval.high:+.{decimals}f}"


def spread(values: np.ndarray) -> Spread:
    """Return mean and sample deviation of one or more values (deviation None for one value)."""
    return Spread(mean=float(values.mean()), deviation=float(values.std(ddof=1)) if len(values) > 1 else None)
