"""The difference of two models' expected calibration errors, paired by seed and example.

The error is no mean over examples, so it is computed anew for every resample: with seeds and examples drawn as the crossed
bootstrap draws them, and its interval widened in the same way. Resampling makes both errors a little larger, and alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attngraft.errors import DataError
from attngraft.results.statistics import RESAMPLES, interval_of
from attngraft.results.study import Difference
from attngraft.study.verdict import of_seeds
from attngraft.tasks.calibration import BINS, bin_of

_AT_ONCE = 2**22  #: counts that are drawn together


@dataclass(frozen=True, kw_only=True)
class Beliefs:
    """What one run stated about its examples, and whether it came true; each (N, K)."""

    names: np.ndarray
    stated: np.ndarray
    true: np.ndarray

    def gaps(self, order: np.ndarray) -> np.ndarray:
        """(N, bins): what each example adds to the distance of what is stated and what comes true, by bin; in the order of
        these names. The error is the sum over bins of the absolute values of their means over examples and statements."""
        place = np.zeros(len(order), dtype=np.int64)
        if len(self.names) == len(order):
            place[np.argsort(order, kind="stable")] = np.argsort(self.names, kind="stable")
        if not np.array_equal(self.names[place], order):
            raise DataError("the runs were evaluated on different examples; repeat the study")
        stated, true = self.stated[place].astype(float), self.true[place].astype(float)
        rows = np.arange(len(order))[:, None] * BINS + bin_of(stated)
        sums = np.bincount(rows.reshape(-1), weights=(stated - true).reshape(-1), minlength=len(order) * BINS)
        return sums.reshape(len(order), BINS) / stated.shape[1]


def compare_calibration(
    baseline: Sequence[Beliefs], variant: Sequence[Beliefs], *, resamples: int = RESAMPLES, random_state: int = 0
) -> Difference:
    """The variant's expected calibration error minus the baseline's, seed by seed in both; lower is better.

    Raises:
        DataError: the runs did not evaluate the same examples.
    """
    order = baseline[0].names
    gaps = np.stack([np.stack([each.gaps(order) for each in runs]) for runs in (baseline, variant)])  # (2, S, N, bins)
    seeds, examples = gaps.shape[1:3]
    by_seed = _errors(np.ones((1, examples)), gaps)[0]
    generator = np.random.default_rng(random_state)
    drawn = np.empty((resamples, seeds))
    rows = max(1, _AT_ONCE // examples)
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        counts = generator.multinomial(examples, np.full(examples, 1 / examples), size=size).astype(float)
        drawn[start : start + size] = _errors(counts, gaps)
    weights = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
    means = (drawn * weights).sum(1) / seeds
    return of_seeds(by_seed, interval_of(means, by_seed), tests=[], higher_is_better=False)


def _errors(counts: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """(R, S): by how much the variant's error is larger, examples taken as often as `counts` (R, N) says."""
    _, seeds, examples, bins = gaps.shape
    flat = gaps.transpose(2, 0, 1, 3).reshape(examples, -1)
    errors = np.abs((counts @ flat).reshape(len(counts), 2, seeds, bins)).sum(-1) / examples
    difference: np.ndarray = errors[:, 1] - errors[:, 0]
    return difference
