"""One-sided tests that the package's statistics must pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from attngraft.results.crossed import CONFIDENCE
from attngraft.results.statistics import holm
from proof.coverage import Count

LEVELS = (0.01, 0.05, 0.1, 0.2, 0.5)  #: levels at which McNemar's p is tested
ALPHA = 0.05  #: for all tests together


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A one-sided binomial test, which fails if `p_holm` is below `ALPHA`."""

    name: str
    required: str
    count: int
    of: int
    p: float  #: uncorrected
    p_holm: float = 1.0  #: with Holm's correction over all tests

    @property
    def passed(self) -> bool:
        return self.p_holm >= ALPHA


def coverage_tests(name: str, count: Count) -> list[Outcome]:
    """Return tests of all intervals against coverage below 95%."""
    cells = (
        ("95%", count.interval, count.with_interval),
        ("bootstrap", count.bootstrap, count.studies),
        ("t", count.t, count.with_t),
    )
    return [
        Outcome(
            name=f"{name}: {kind} interval",
            required=f"holds the truth in {CONFIDENCE:.0%} or more",
            count=held,
            of=studies,
            p=float(stats.binomtest(held, studies, CONFIDENCE, alternative="less").pvalue),
        )
        for kind, held, studies in cells
        if studies
    ]


def uniform_tests(p_values: np.ndarray) -> list[Outcome]:
    """Return tests of whether p is at or below each level more often than the level."""
    return [
        Outcome(
            name=f"McNemar's p <= {level:g}, equal accuracy",
            required=f"not more often than in {level:.0%}",
            count=(low := int((p_values <= level).sum())),
            of=len(p_values),
            p=float(stats.binomtest(low, len(p_values), level, alternative="greater").pvalue),
        )
        for level in LEVELS
    ]


def corrected(tests: Sequence[Outcome]) -> list[Outcome]:
    """Return the tests with Holm's correction over all of them."""
    p_values = holm([test.p for test in tests])
    return [dataclasses.replace(test, p_holm=float(p or 0.0)) for test, p in zip(tests, p_values, strict=True)]
