"""The interval and p-value that decide a verdict, from the variance between seeds and between examples.

The differences d[s, n] of S seeds and N examples are taken as a crossed random-effects model,

    d[s, n] = mean + seed[s] + example[n] + rest[s, n],

whose variances are estimated by moments, from the mean squares of the two-way analysis of variance. The variance of the mean
difference is the sum of two parts:

    V_seeds    = (var_seed + var_rest / N) / S = variance of the seeds' means / S
    V_examples = var_example / N

The half-length of the interval combines the half-lengths for each part ("square and add", Zou and Donner 2008), each with
its own quantile of Student's t:

    sqrt(t(S - 1)^2 V_seeds + t(N - 1)^2 V_examples)

If examples have no effect of their own, this is the t-interval over seeds; with many seeds, it is the normal interval of
the model. Satterthwaite's single number of degrees of freedom is too large if the seeds' variance is small by chance: with
two or three seeds, it calls too many differences (`proof/verdict_grid.py`).
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize, special

from attngraft.results.study import Interval

CONFIDENCE = 0.95
_SMALLEST_P = 1e-100


@dataclass(frozen=True, kw_only=True)
class Components:
    """A mean difference over S seeds and N examples, with moment estimates of its variance components.

    Estimates of `seeds` and `examples` are negative if, by chance, means differ less than the rest alone makes them differ.
    """

    mean: float
    seed_count: int  #: S
    example_count: int  #: N
    seed_means: float  #: variance of the seeds' means, var_seed + var_rest / N
    examples: float  #: var_example
    rest: float  #: var_rest

    @property
    def seeds(self) -> float:
        """Variance of seeds, var_seed."""
        return self.seed_means - self.rest / self.example_count

    def with_folds(self, folds: int | None) -> "Components":
        """Return the components for examples that were judged in `folds` folds, whose training sets overlap.

        The examples of a fold are in the training sets of all others, so scores of different folds are correlated. With the
        correlation 1 / K of Nadeau and Bengio (2003, "Inference for the generalization error") between K folds, the variance
        of the mean over examples is 1 + K / (K - 1) times that of independent examples. None: one split, no change.
        """
        return self if folds is None else replace(self, examples=self.examples * (1 + folds / (folds - 1)))

    def interval(self, confidence: float = CONFIDENCE) -> Interval | None:
        """Return the interval of the mean difference over seeds and examples, which decides the verdict.

        Returns None, so that nothing can be called, for one seed or one example, and if all seeds have exactly the same
        nonzero mean, which happens by chance with few examples. Returns [0, 0] if all differences are zero.
        """
        if not self._estimable:
            return None
        half = self._half_length(1 - confidence)
        return Interval(point=self.mean, low=self.mean - half, high=self.mean + half)

    def p_value(self) -> float | None:
        """Return the two-sided p-value: one minus the largest confidence at which the interval excludes zero.

        Returns None in the same cases as `interval`, and 1 if the mean is zero.
        """
        if not self._estimable:
            return None
        if self.mean == 0:
            return 1.0
        if self._half_length(_SMALLEST_P) <= abs(self.mean):
            return _SMALLEST_P
        log_p = optimize.brentq(lambda log: self._half_length(np.exp(log)) - abs(self.mean), np.log(_SMALLEST_P), 0.0)
        return float(np.exp(log_p))

    @property
    def _estimable(self) -> bool:
        """Whether there are two seeds and examples, and the seeds' means are not equal by chance.

        Few examples can give all seeds exactly the same nonzero mean, which is no estimate of the noise between seeds.
        """
        equal = self.seed_means**0.5 <= 1e-12 * max(1.0, abs(self.mean))
        return self.seed_count > 1 and self.example_count > 1 and (self.mean == 0 or not equal)

    def _half_length(self, p: float) -> float:
        return float(half_length(self.seed_means, self.examples, self.seed_count, self.example_count, p=p))


def half_length(
    seed_means: float | np.ndarray,
    examples: float | np.ndarray,
    seed_count: int,
    example_count: int,
    *,
    p: float = 0.05,
) -> np.ndarray:
    """Return the half-length of the interval with confidence 1 - p, for scalars or arrays of variances."""
    t_seeds, t_examples = (special.stdtrit(count - 1, p / 2) for count in (seed_count, example_count))
    of_seeds = t_seeds**2 * np.asarray(seed_means) / seed_count
    return np.sqrt(of_seeds + t_examples**2 * np.maximum(examples, 0) / example_count)


def components(differences: np.ndarray) -> Components:
    """Return the variance components of finite differences (S, N).

    Raises:
        ValueError: `differences` is not (S, N), empty, or not finite.
    """
    array = np.asarray(differences, dtype=float)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"differences must be (seeds, examples) and not empty, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError("differences must be finite")
    seeds, examples = array.shape
    by_seed, by_example, mean = array.mean(axis=1), array.mean(axis=0), array.mean()
    if min(seeds, examples) < 2:
        between = float(by_seed.var(ddof=1)) if seeds > 1 else 0.0
        return Components(
            mean=float(mean), seed_count=seeds, example_count=examples, seed_means=between, examples=0.0, rest=0.0
        )
    rest = float(((array - by_seed[:, None] - by_example + mean) ** 2).sum() / ((seeds - 1) * (examples - 1)))
    return Components(
        mean=float(mean),
        seed_count=seeds,
        example_count=examples,
        seed_means=float(by_seed.var(ddof=1)),
        examples=float(by_example.var(ddof=1)) - rest / seeds,
        rest=rest,
    )


def components_of_metric(by_seed: np.ndarray, resampled: np.ndarray, *, examples: int) -> Components:
    """Return the variance components of the difference in a metric of the whole corpus, from resampled examples.

    With the same resampled examples for all seeds, the variance of the seeds' mean over resamples is
    (var_example + var_rest / S) / N, and the mean over seeds of each seed's variance is (var_example + var_rest) / N.

    Args:
        by_seed: difference of each seed, (S,).
        resampled: differences of each seed on R resamples of the examples, (R, S); rows with NaN are dropped.
        examples: number of examples, N.
    """
    seeds, drawn = len(by_seed), resampled[np.isfinite(resampled).all(axis=1)]
    of_examples = rest = 0.0
    if seeds > 1 and len(drawn) > 1:
        of_mean, of_seed = float(drawn.mean(axis=1).var(ddof=1)), float(drawn.var(axis=0, ddof=1).mean())
        rest = (of_seed - of_mean) * seeds / (seeds - 1)
        of_examples = of_seed - rest
    return Components(
        mean=float(by_seed.mean()),
        seed_count=seeds,
        example_count=examples,
        seed_means=float(by_seed.var(ddof=1)) if seeds > 1 else 0.0,
        examples=examples * of_examples,
        rest=examples * rest,
    )
