"""Metrics as functions of the examples' counts, so that any metric can be resampled.

A bootstrap resample of N examples is a vector of N counts. A `Statistic` stores the required numbers of each example and
computes the metric for many such vectors at once: as a mean of scores, as a formula of sums (macro F1, mIoU, BLEU,
perplexity), or from a ranking with the counts as weights (average precision, Spearman's correlation). With all counts 1,
it returns the usual metric.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

Sums = Callable[[np.ndarray], np.ndarray]  #: sums over examples (R, K) -> values (R,), or values of each class (R, C)

_FEW_POSITIVES = 128  #: maximum positives of a class for which a matrix product is faster than cumulative sums
_MATRIX_LIMIT = 2**28  #: maximum number of elements of these products' matrices in total
_ROWS_IN_CACHE = 2**18  #: number of counts that fit into the CPU's cache
_SAME = 1e-3  #: tolerance of metrics
_LEFT_OUT_AT_ONCE = 2**22  #: number of counts in memory at a time in `leave_one_out`


def same_metric(first: float, second: float) -> bool:
    """Return whether two values of a metric are equal; those of earlier versions may differ in the last digits."""
    return bool(np.isclose(first, second, rtol=_SAME, atol=_SAME, equal_nan=True))


class Statistic(ABC):
    """One metric of one run on N examples, for any counts of the examples."""

    #: whether the metric is the mean of scores of 0 or 1, so that McNemar's test applies
    binary: bool = False
    #: quantities not recomputed for each resample, for the report ("the weight of each class"); may be empty
    held_fixed: str = ""

    @property
    @abstractmethod
    def examples(self) -> int:
        """Number of examples, N."""

    @abstractmethod
    def parts(self, counts: np.ndarray) -> np.ndarray:
        """Return the parts (R, C) whose mean is the metric, for counts (R, N); NaN where undefined.

        Most metrics have one part. A mean over classes has one part per class: a class that is missing from a resample is
        undefined, and is omitted from the means of both runs of a pair.
        """

    @abstractmethod
    def take(self, order: np.ndarray) -> "Statistic":
        """Return the statistic of the examples with the indices `order`, (M,)."""

    @property
    def cost(self) -> float:
        """Approximate nanoseconds per resample on one CPU core, used to choose the number of resamples."""
        return self.examples

    def value(self, counts: np.ndarray) -> np.ndarray:
        """Return the metric (R,) for counts (R, N) of the examples; NaN where it is undefined."""
        return mean_of_defined(self.parts(counts))

    @cached_property
    def point(self) -> float:
        """The metric with every example counted once."""
        return float(self.value(np.ones((1, self.examples)))[0])

    def leave_one_out(self) -> np.ndarray:
        """Return the metric without each example in turn, (N,)."""
        result = np.empty(self.examples)
        rows = max(1, _LEFT_OUT_AT_ONCE // self.examples)
        for start in range(0, self.examples, rows):
            stop = min(start + rows, self.examples)
            counts = np.ones((stop - start, self.examples))
            counts[np.arange(stop - start), np.arange(start, stop)] = 0
            result[start:stop] = self.value(counts)
        return result


def mean_of_defined(parts: np.ndarray) -> np.ndarray:
    """Return the mean (R,) over the finite values of each row (R, C); NaN for rows without any."""
    if parts.shape[1] == 1:
        return parts[:, 0]
    defined = np.isfinite(parts)
    number = defined.sum(axis=1)
    sums = np.where(defined, parts, 0.0).sum(axis=1)
    return np.where(number > 0, sums / np.maximum(number, 1), np.nan)


@dataclass(frozen=True, eq=False)
class MeanScore(Statistic):
    """The mean of one score per example, such as accuracy, loss, or an image's average precision."""

    score: np.ndarray  #: (N,)
    binary: bool = False
    held_fixed: str = ""

    @property
    def examples(self) -> int:
        return len(self.score)

    def parts(self, counts: np.ndarray) -> np.ndarray:
        return _divide(counts @ self.score.astype(float), counts.sum(axis=1))[:, None]

    def take(self, order: np.ndarray) -> "MeanScore":
        return replace(self, score=self.score[order])

    def leave_one_out(self) -> np.ndarray:
        score = self.score.astype(float)
        return _divide(score.sum() - score, np.full(len(score), len(score) - 1.0))


@dataclass(frozen=True, eq=False)
class ClosedForm(Statistic):
    """A formula of sums over examples.

        value(c) = formula(sum_n c_n s_n)

    where s_n are the summands of example n: counts of n-grams and lengths (BLEU), intersections and totals per class (mIoU),
    squared errors (RMSE). A formula may return one value per class.
    """

    summands: Any  #: (N, K), dense or a scipy.sparse array
    formula: Sums  #: (R, K) -> (R,) or (R, C)
    held_fixed: str = ""

    @property
    def examples(self) -> int:
        return int(self.summands.shape[0])

    @property
    def cost(self) -> float:
        return float(0.5 * self.summands.nnz if sparse.issparse(self.summands) else 0.1 * self.summands.size)

    def parts(self, counts: np.ndarray) -> np.ndarray:
        return self._formula(np.asarray(counts @ self.summands, dtype=float))

    def take(self, order: np.ndarray) -> "ClosedForm":
        return replace(self, summands=self.summands[order])

    def leave_one_out(self) -> np.ndarray:
        """Return the metric without each example in turn, (N,), by subtracting its summands from the sums."""
        total = np.asarray(np.ones(self.examples) @ self.summands, dtype=float)
        return np.concatenate([mean_of_defined(self._formula(total - rows)) for rows in self._rows()])

    def examples_of_parts(self) -> np.ndarray:
        """Return the number of examples that define each part, (C,), such as the images in which a class occurs."""
        return np.sum([np.isfinite(self._formula(rows)).sum(axis=0) for rows in self._rows()], axis=0)

    def _rows(self) -> Iterator[np.ndarray]:
        """Yield the summands as dense arrays, a few examples at a time."""
        step = max(1, _LEFT_OUT_AT_ONCE // max(self.summands.shape[1], 1))
        for start in range(0, self.examples, step):
            rows = self.summands[start : start + step]
            yield rows.toarray() if sparse.issparse(rows) else np.asarray(rows, dtype=float)

    def _formula(self, sums: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = self.formula(sums)
        return values[:, None] if values.ndim == 1 else values


@dataclass(frozen=True, eq=False)
class MeanAveragePrecision(Statistic):
    """The mean over classes of the average precision of ranked examples.

        AP = sum over positives i of c_i precision(i) / sum over positives of c_i

    where precision(i) is the share of positives among the examples that score at least as high as i, all weighted by their
    counts c. Equal scores form one threshold. A class without positives is undefined.
    """

    scores: np.ndarray  #: (N, C)
    truth: np.ndarray  #: (N, C), bool

    @property
    def examples(self) -> int:
        return len(self.scores)

    @property
    def cost(self) -> float:
        positives = self.truth.sum(axis=0)
        return float(self.examples * np.where(positives <= self._few, 0.04 * positives, 8).sum())

    def parts(self, counts: np.ndarray) -> np.ndarray:
        counts = np.ascontiguousarray(counts, dtype=np.float32)  # sums of counts are exact below 2^24
        rows = max(1, _ROWS_IN_CACHE // self.examples)
        result = np.empty((len(counts), self.scores.shape[1]))
        for index in range(self.scores.shape[1]):
            for start in range(0, len(counts), rows):
                result[start : start + rows, index] = self._average_precision(index, counts[start : start + rows])
        return result

    def take(self, order: np.ndarray) -> "MeanAveragePrecision":
        return MeanAveragePrecision(self.scores[order], self.truth[order])

    def _average_precision(self, index: int, counts: np.ndarray) -> np.ndarray:
        order, positives, last, above = self._ranking[index]
        if not len(positives):
            return np.full(len(counts), np.nan)
        weights = counts[:, positives]
        if above is not None:
            ranked, correct = counts @ above, weights @ above[positives]
        else:
            sums = np.cumsum(counts[:, order], axis=1)
            ranked, by_rank = sums[:, last], np.cumsum(weights, axis=1)
            correct = by_rank[:, np.searchsorted(last, last, side="right") - 1]
        precision = _divide(correct.astype(float), ranked, empty=0.0)
        return _divide((weights * precision).sum(axis=1), weights.sum(axis=1, dtype=float))

    @property
    def _few(self) -> int:
        return min(_FEW_POSITIVES, _MATRIX_LIMIT // self.scores.size)

    @cached_property
    def _ranking(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]]:
        """Ranking of each class: (order by score, positives in that order, last ranks, above).

        `last ranks` contains, for each positive, the rank of the last example with the same score. `above` is the (N, P)
        matrix of whether an example scores at least as high as a positive; None for more than `_few` positives.
        """
        result = []
        for score, truth in zip(self.scores.T, self.truth.T.astype(bool), strict=True):
            order = np.argsort(-score, kind="stable")
            positives = order[truth[order]]
            last = np.searchsorted(-score[order], -score[positives], side="right") - 1
            above = None
            if len(positives) <= self._few:
                above = (score[:, None] >= score[None, positives]).astype(np.float32)
            result.append((order, positives, last, above))
        return result


@dataclass(frozen=True, eq=False)
class SpearmanCorrelation(Statistic):
    """Spearman's rank correlation, with mean ranks for ties. Undefined if either input is constant."""

    predicted: np.ndarray  #: (N,)
    target: np.ndarray  #: (N,)

    @property
    def examples(self) -> int:
        return len(self.predicted)

    @property
    def cost(self) -> float:
        return 50 * self.examples

    def parts(self, counts: np.ndarray) -> np.ndarray:
        counts = np.asarray(counts, dtype=np.float64)
        total = counts.sum(axis=1, keepdims=True)
        first, second = (_ranks(values, counts) - (total + 1) / 2 for values in (self.predicted, self.target))
        covariance = (counts * first * second).sum(axis=1)
        variances = (counts * first**2).sum(axis=1) * (counts * second**2).sum(axis=1)
        return _divide(covariance, np.sqrt(variances))[:, None]

    def take(self, order: np.ndarray) -> "SpearmanCorrelation":
        return SpearmanCorrelation(self.predicted[order], self.target[order])


@dataclass(frozen=True, eq=False)
class MeanOfStatistics(Statistic):
    """The mean of several statistics of the same examples, such as one per predicted number."""

    statistics: Sequence[Statistic]

    @property
    def examples(self) -> int:
        return self.statistics[0].examples

    @property
    def cost(self) -> float:
        return sum(statistic.cost for statistic in self.statistics)

    def parts(self, counts: np.ndarray) -> np.ndarray:
        return np.concatenate([statistic.parts(counts) for statistic in self.statistics], axis=1)

    def take(self, order: np.ndarray) -> "MeanOfStatistics":
        return MeanOfStatistics([statistic.take(order) for statistic in self.statistics])

    def leave_one_out(self) -> np.ndarray:
        return mean_of_defined(np.stack([statistic.leave_one_out() for statistic in self.statistics], axis=1))


def _ranks(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the ranks (R, N) of `values` in each resample; ties get their mean rank."""
    _distinct, group = np.unique(values, return_inverse=True)
    by_group = np.asarray(counts @ sparse.csr_array((np.ones(len(values)), (np.arange(len(values)), group))))
    ranks = np.cumsum(by_group, axis=1) - by_group + (by_group + 1) / 2
    result: np.ndarray = ranks[:, group]
    return result


def _divide(numerator: np.ndarray, denominator: np.ndarray, *, empty: float = np.nan) -> np.ndarray:
    """Return the quotient; `empty` where the denominator is 0."""
    result = np.full(np.broadcast_shapes(numerator.shape, denominator.shape), empty)
    np.divide(numerator, denominator, out=result, where=denominator != 0)
    return result


# --- formulas ---------------------------------------------------------------------------------------------------------


def root_mean_squared_error(predicted: np.ndarray, target: np.ndarray) -> ClosedForm:
    """Return sqrt(mean (predicted - target)^2)."""
    squares = (predicted.astype(float) - target.astype(float)) ** 2
    summands = np.stack([squares, np.ones(len(squares))], axis=1)
    return ClosedForm(summands, lambda sums: np.sqrt(sums[:, 0] / sums[:, 1]))


def r_squared(predicted: np.ndarray, target: np.ndarray) -> ClosedForm:
    """Return 1 - residual / total sum of squares; the targets' mean is computed for each resample."""
    predicted, target = predicted.astype(float), target.astype(float)
    center = float(target.mean())  # shift the target by a constant, to avoid cancellation
    shifted = target - center
    summands = np.stack([(predicted - target) ** 2, shifted, shifted**2, np.ones(len(target))], axis=1)

    def formula(sums: np.ndarray) -> np.ndarray:
        total = sums[:, 2] - sums[:, 1] ** 2 / sums[:, 3]
        constant = total <= 1e-12 * np.maximum(sums[:, 2], 1e-300)
        return np.where(constant, np.nan, 1 - sums[:, 0] / np.where(constant, 1.0, total))

    return ClosedForm(summands, formula)


def macro_f1(predicted: np.ndarray, target: np.ndarray, *, classes: int) -> ClosedForm:
    """Return the mean F1 over the classes that occur; labels are class indices (N,).

    A class is undefined where no example has it.
    """
    rows, hit = np.arange(len(target)), predicted == target
    indices = [
        (rows, predicted),
        (rows, classes + target),
        (rows[hit], 2 * classes + target[hit]),
    ]
    row, column = (np.concatenate(each) for each in zip(*indices, strict=True))
    summands = sparse.csr_array((np.ones(len(row)), (row, column)), shape=(len(target), 3 * classes))
    return ClosedForm(summands, f1_by_class)


def macro_f1_of_labels(predicted: np.ndarray, target: np.ndarray) -> ClosedForm:
    """Return the mean F1 over the labels that occur; decisions and truth are bool (N, C)."""
    columns = [predicted, target, predicted & target]
    return ClosedForm(sparse.csr_array(np.concatenate(columns, axis=1).astype(float)), f1_by_class)


def micro_f1_of_labels(predicted: np.ndarray, target: np.ndarray) -> ClosedForm:
    """Return the micro F1, over the decisions for all labels; decisions and truth are bool (N, C)."""
    summands = np.stack([predicted.sum(1) + target.sum(1), (predicted & target).sum(1)], axis=1).astype(float)
    return ClosedForm(summands, lambda sums: 2 * sums[:, 1] / sums[:, 0])


def f1_by_class(sums: np.ndarray) -> np.ndarray:
    """Return F1 (R, C) from predicted, actual and correct counts (R, 3 C); NaN for missing classes."""
    predicted, actual, correct = np.split(sums, 3, axis=1)
    return np.where(actual > 0, 2 * correct / (predicted + actual), np.nan)


def calibration_error(gaps: np.ndarray) -> ClosedForm:
    """Return the expected calibration error, sum over bins |mean gap|.

    Args:
        gaps: (N, bins): each example's predicted probability minus its outcome, in the probability's bin, else 0.
    """
    summands = np.concatenate([gaps, np.ones((len(gaps), 1))], axis=1)
    return ClosedForm(summands, lambda sums: np.abs(sums[:, :-1]).sum(axis=1) / sums[:, -1])


# --- all metrics of a run ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Metrics of one run on one split, as returned by `Task.measure`.

    Two runs can be compared by a metric only if their `comparable` entries for it are equal. For perplexity per token, for
    example, the entry names the tokenizer. A metric without an entry can always be compared.
    """

    values: Mapping[str, float]  #: all metrics, the primary metric first
    statistics: Mapping[str, Statistic]  #: statistics of the metrics that can be resampled
    comparable: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = self.statistics.keys() - self.values.keys()
        if unknown:
            raise ValueError(f"statistics without a value: {', '.join(sorted(unknown))}; add them to `values`")
