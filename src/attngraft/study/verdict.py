"""Differences between a variant and the baseline: intervals, tests, and the verdict.

A variant is called better or worse only if both 95% intervals exclude zero: the crossed bootstrap (other seeds, other
examples) and the t-interval (other seeds, these examples). With one seed there is no t-interval, so there is no verdict.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attngraft.errors import DataError
from attngraft.results.statistics import (
    RESAMPLES,
    crossed_bootstrap,
    holm,
    interval_of,
    mcnemar,
    paired_t_p,
    t_interval,
)
from attngraft.results.study import Difference, Interval, McNemar, Spread, Verdict
from attngraft.tasks.calibration import BINS, bin_of

_AT_ONCE = 2**22  #: maximum number of example counts drawn at once in a bootstrap


def compare_scores(
    baseline: Mapping[int, np.ndarray],
    variant: Mapping[int, np.ndarray],
    *,
    binary: bool,
    higher_is_better: bool = True,
) -> Difference:
    """Return the difference of the mean scores, variant minus baseline, over the seeds that both have.

    Args:
        baseline, variant: scores (N,) per seed, of the same examples in the same order.
        binary: whether scores are 0 or 1, so that McNemar's test applies.
        higher_is_better: whether a higher metric is better.

    Returns:
        The difference. `p_holm` is the uncorrected p-value until `corrected` is applied to all variants.

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
    found = difference_of(by_seed, crossed_bootstrap(differences), tests=tests, higher_is_better=higher_is_better)
    if differences.any():
        return found
    where = "in the one seed" if len(seeds) == 1 else f"in all {len(seeds)} seeds"
    why = f"no difference at all: {where} every example is scored exactly as the baseline scores it"
    return dataclasses.replace(found, why=why)


def difference_of(
    by_seed: np.ndarray, bootstrap: Interval, *, tests: list[McNemar], higher_is_better: bool = True
) -> Difference:
    """Return the difference of any statistic, from its differences by seed and its bootstrap interval."""
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
    """Return the differences with Holm's correction, which changes p-values but never a verdict.

    Args:
        differences: one per variant.
        untested: number of further variants that were stopped early. They count as tests without a finding, which keeps
            the level of the correction whatever the reason for stopping.
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
            f"all {seeds} seeds differ by exactly {bootstrap.point:+.3g}, which is chance and no measure of the noise "
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


def _shown(interval: Interval) -> str:
    """Format both ends with the number of decimals that gives the larger one three digits."""
    largest = max(abs(interval.low), abs(interval.high))
    decimals = 2 if largest == 0 else int(np.clip(2 - np.floor(np.log10(largest)), 0, 12))
    return f"{interval.low:+.{decimals}f} to {interval.high:+.{decimals}f}"


def spread(values: np.ndarray) -> Spread:
    """Return mean and sample deviation of at least one value."""
    return Spread(mean=float(values.mean()), deviation=float(values.std(ddof=1)) if len(values) > 1 else None)


# --- calibration ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CalibrationInputs:
    """Predicted probabilities of one run, and whether each prediction was true."""

    names: np.ndarray  #: (N,), names of the examples
    stated: np.ndarray  #: (N, K)
    true: np.ndarray  #: (N, K)

    def gaps(self, order: np.ndarray) -> np.ndarray:
        """Return each example's share of `stated` minus `true` in each bin, (N, bins), for the examples in `order`.

        The calibration error is the sum over bins of the absolute values of the means over examples and predictions.
        """
        index = np.zeros(len(order), dtype=np.int64)
        if len(self.names) == len(order):
            index[np.argsort(order, kind="stable")] = np.argsort(self.names, kind="stable")
        if not np.array_equal(self.names[index], order):
            raise DataError("the runs were evaluated on different examples; repeat the study")
        stated, true = self.stated[index].astype(float), self.true[index].astype(float)
        rows = np.arange(len(order))[:, None] * BINS + bin_of(stated)
        sums = np.bincount(rows.reshape(-1), weights=(stated - true).reshape(-1), minlength=len(order) * BINS)
        return sums.reshape(len(order), BINS) / stated.shape[1]


def compare_calibration(
    baseline: Sequence[CalibrationInputs],
    variant: Sequence[CalibrationInputs],
    *,
    resamples: int = RESAMPLES,
    random_state: int = 0,
) -> Difference:
    """Return the variant's expected calibration error minus the baseline's, paired by seed; lower is better.

    The error is not a mean over examples, so it is recomputed for every resample. Seeds and examples are drawn as in the
    crossed bootstrap, and the interval is widened in the same way. Resampling increases both errors slightly, and equally.

    Raises:
        DataError: the runs were not evaluated on the same examples.
    """
    order = baseline[0].names
    gaps = np.stack([np.stack([each.gaps(order) for each in runs]) for runs in (baseline, variant)])  # (2, S, N, bins)
    seeds, examples = gaps.shape[1:3]
    by_seed = _error_differences(np.ones((1, examples)), gaps)[0]
    generator = np.random.default_rng(random_state)
    drawn = np.empty((resamples, seeds))
    rows = max(1, _AT_ONCE // examples)
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        counts = generator.multinomial(examples, np.full(examples, 1 / examples), size=size).astype(float)
        drawn[start : start + size] = _error_differences(counts, gaps)
    weights = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
    means = (drawn * weights).sum(1) / seeds
    return difference_of(by_seed, interval_of(means, by_seed), tests=[], higher_is_better=False)


def _error_differences(counts: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """Return the variant's error minus the baseline's, (R, S), with examples repeated as in `counts` (R, N)."""
    _, seeds, examples, bins = gaps.shape
    flat = gaps.transpose(2, 0, 1, 3).reshape(examples, -1)
    errors = np.abs((counts @ flat).reshape(len(counts), 2, seeds, bins)).sum(-1) / examples
    difference: np.ndarray = errors[:, 1] - errors[:, 0]
    return difference
