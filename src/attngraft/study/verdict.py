"""Differences between a variant and the baseline: intervals, tests, and the verdict.

A variant is called better or worse only if both 95% intervals exclude zero: the crossed bootstrap (over seeds and
examples) and the t-interval (over seeds, for fixed examples). With one seed there is no t-interval, so there is no verdict.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from attngraft.results.measured import MeanScore, Statistic
from attngraft.results.statistics import (
    affordable_resamples,
    crossed_bootstraps,
    crossed_bootstraps_of,
    holm,
    mcnemar,
    paired_differences,
    paired_t_p,
    t_interval,
)
from attngraft.results.study import Difference, Interval, McNemar, Spread, Verdict


def compare_statistics(
    baseline: Mapping[int, Statistic], variant: Mapping[int, Statistic], *, higher_is_better: bool
) -> Difference | None:
    """Return the difference in a metric, variant minus baseline, over their common seeds.

    Means of scores are compared by the examples' score differences; any other metric is recomputed for every resample.

    Args:
        baseline: the baseline's statistic for each seed.
        variant: the variant's statistic for each seed, on the same examples in the same order.
        higher_is_better: direction of the metric.

    Returns:
        The difference, or None if the metric is undefined for a run. `p_holm` is the uncorrected p-value until `corrected`
        is applied to all variants.
    """
    return compare_all([(baseline, variant)], higher_is_better=higher_is_better)[0]


def compare_all(
    pairs: Sequence[tuple[Mapping[int, Statistic], Mapping[int, Statistic]]], *, higher_is_better: bool
) -> list[Difference | None]:
    """Return `compare_statistics` of each pair of baseline and variant, resampling the same baseline once."""
    scores: dict[int, tuple[np.ndarray, list[McNemar]]] = {}  # index -> differences of scores (S, N), tests
    others: dict[tuple[tuple[Statistic, ...], int], dict[int, list[Statistic]]] = {}  # same baseline and resamples
    by_seed: dict[int, np.ndarray] = {}
    for index, (baseline, variant) in enumerate(pairs):
        seeds = sorted(baseline.keys() & variant.keys())
        first, second = [baseline[seed] for seed in seeds], [variant[seed] for seed in seeds]
        before, after = ([each.score for each in runs if isinstance(each, MeanScore)] for runs in (first, second))
        if len(before) == len(after) == len(seeds):
            differences = np.stack(after).astype(float) - np.stack(before).astype(float)
            by_seed[index] = differences.mean(axis=1)
            if np.isfinite(by_seed[index]).all():
                tests = []
                if all(each.binary for each in [*first, *second]):
                    tests = [mcnemar(*pair, seed=seed) for seed, *pair in zip(seeds, before, after, strict=True)]
                scores[index] = differences, tests
        else:
            by_seed[index] = paired_differences(first, [second], np.ones((1, first[0].examples)))[0, 0]
            if np.isfinite(by_seed[index]).all():
                others.setdefault((tuple(first), affordable_resamples(first, second)), {})[index] = second
    found: dict[int, Difference] = {}
    intervals = crossed_bootstraps([differences for differences, _ in scores.values()])
    for (index, (differences, tests)), interval in zip(scores.items(), intervals, strict=True):
        found[index] = _difference(by_seed[index], interval, tests=tests, higher_is_better=higher_is_better)
        if not differences.any():
            where = "in the one seed" if len(differences) == 1 else f"in all {len(differences)} seeds"
            why = f"no difference at all: {where} every example has exactly the baseline's score"
            found[index] = dataclasses.replace(found[index], why=why)
    for (same, resamples), variants in others.items():
        intervals = crossed_bootstraps_of(same, list(variants.values()), resamples=resamples)
        for index, interval in zip(variants, intervals, strict=True):
            difference = _difference(by_seed[index], interval, tests=[], higher_is_better=higher_is_better)
            found[index] = dataclasses.replace(difference, resamples=resamples)
    return [found.get(index) for index in range(len(pairs))]


def _difference(
    by_seed: np.ndarray, bootstrap: Interval, *, tests: list[McNemar], higher_is_better: bool
) -> Difference:
    t = t_interval(by_seed)
    p_value = paired_t_p(by_seed) if len(by_seed) > 1 else (tests[0].p_value if tests else None)
    verdict = _verdict(bootstrap, t, higher_is_better)
    return Difference(
        mean=float(by_seed.mean()),
        bootstrap=bootstrap,
        t=t,
        p_value=p_value,
        p_holm=p_value,
        p_source="paired t over seeds" if len(by_seed) > 1 else "exact McNemar",
        mcnemar=tests,
        verdict=verdict,
        why=_why(verdict, bootstrap, t, tests, seeds=len(by_seed)),
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


def _verdict(bootstrap: Interval, t: Interval | None, higher_is_better: bool) -> Verdict:
    if t is None or not (_excludes_zero(bootstrap) and _excludes_zero(t)):
        return "inside the noise"
    return "better" if (t.point > 0) == higher_is_better else "worse"


def _excludes_zero(interval: Interval) -> bool:
    return interval.low > 0 or interval.high < 0


def _why(verdict: Verdict, bootstrap: Interval, t: Interval | None, tests: list[McNemar], *, seeds: int) -> str:
    if seeds == 1:
        test = f"exact McNemar's p is {tests[0].p_value:.2g}, and " if tests else ""
        return (
            f"with one seed the noise between seeds is unknown, so nothing is called better or worse; {test}"
            f"over examples alone the 95% interval is {_shown(bootstrap)}"
        )
    if t is None:
        return (
            f"all {seeds} seeds differ by exactly {bootstrap.point:+.3g}, which happens by chance and does not measure the "
            f"noise between seeds; over examples the 95% interval is {_shown(bootstrap)}"
        )
    first = f"the crossed bootstrap's 95% interval, {_shown(bootstrap)},"
    second = f"the t-interval over {seeds} seeds, {_shown(t)}"
    if verdict != "inside the noise":
        return f"both {first} and {second}, lie {'above' if bootstrap.low > 0 else 'below'} zero"
    if not _excludes_zero(bootstrap) and not _excludes_zero(t):
        return f"both {first} and {second}, contain zero"
    if _excludes_zero(t):
        return f"{first} contains zero, though {second}, does not"
    return f"{second}, contains zero, though {first} does not"


def _shown(interval: Interval) -> str:
    """Format both ends with the number of decimals at which the larger end has three digits."""
    largest = max(abs(interval.low), abs(interval.high))
    decimals = 2 if largest == 0 else int(np.clip(2 - np.floor(np.log10(largest)), 0, 12))
    return f"{interval.low:+.{decimals}f} to {interval.high:+.{decimals}f}"


def spread(values: np.ndarray) -> Spread:
    """Return mean and sample deviation of one or more values (deviation None for one value)."""
    return Spread(mean=float(values.mean()), deviation=float(values.std(ddof=1)) if len(values) > 1 else None)
