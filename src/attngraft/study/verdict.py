"""From paired scores to a `Difference`: intervals, tests, and the one word that they allow.

A variant is called better or worse only if both 95% intervals exclude zero: the crossed bootstrap (other seeds, other
examples) and the t-interval (other seeds, these examples). With one seed there is no t-interval, so there is no verdict.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from attngraft.results.statistics import crossed_bootstrap, holm, mcnemar, paired_t_p, t_interval
from attngraft.results.study import Difference, Interval, McNemar, Verdict


def compare_scores(
    baseline: Mapping[int, np.ndarray],
    variant: Mapping[int, np.ndarray],
    *,
    binary: bool,
    higher_is_better: bool = True,
) -> Difference:
    """The difference of the mean scores, variant minus baseline, over the seeds that both have.

    Args:
        baseline, variant: per seed the scores (N,), example for example the same in both and over seeds.
        binary: scores are 0 or 1, so that McNemar's test applies.
        higher_is_better: of the metric that the score is a part of.

    Returns:
        The difference. `p_holm` is the uncorrected p-value until `corrected` has seen all variants.

    Raises:
        ValueError: no seed in common, or unequal numbers of examples.
    """
    seeds = sorted(baseline.keys() & variant.keys())
    if not seeds:
        raise ValueError("the two variants have no seed in common")
    sizes = {len(scores[seed]) for scores in (baseline, variant) for seed in seeds}
    if len(sizes) > 1:
        raise ValueError(f"runs have different numbers of examples: {sorted(sizes)}")
    differences = np.stack([np.asarray(variant[seed], float) - np.asarray(baseline[seed], float) for seed in seeds])
    by_seed = differences.mean(axis=1)
    tests = [mcnemar(baseline[seed], variant[seed], seed=seed) for seed in seeds] if binary else []
    found = of_seeds(by_seed, crossed_bootstrap(differences), tests=tests, higher_is_better=higher_is_better)
    return found if differences.any() else dataclasses.replace(found, why=_nothing(len(seeds)))


def of_seeds(
    by_seed: np.ndarray, bootstrap: Interval, *, tests: list[McNemar], higher_is_better: bool = True
) -> Difference:
    """The difference of any statistic, from its value for each seed and its bootstrap interval."""
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
    """The same differences with Holm's correction over all that there are. It changes p-values, never a verdict.

    Args:
        differences: one per variant.
        untested: further variants that competed and were stopped early. They count as tests that found nothing, which
            holds the correction's level whatever they were stopped for.
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
            f"all {seeds} seeds differ by exactly {bootstrap.point:+.3g}, which is chance and says nothing of the noise "
            f"between seeds; over examples the 95% interval is {_shown(bootstrap)}"
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


def _nothing(seeds: int) -> str:
    where = "in the one seed" if seeds == 1 else f"in all {seeds} seeds"
    return f"no difference at all: {where} every example is scored exactly as the baseline scores it"


def _shown(interval: Interval) -> str:
    """Both ends with as many decimals as their larger one needs for three digits."""
    largest = max(abs(interval.low), abs(interval.high))
    decimals = 2 if largest == 0 else int(np.clip(2 - np.floor(np.log10(largest)), 0, 12))
    return f"{interval.low:+.{decimals}f} to {interval.high:+.{decimals}f}"
