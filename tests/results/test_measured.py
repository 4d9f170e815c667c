"""Every statistic against brute force: the metric computed by other packages on the examples of a resample, written out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.stats import spearmanr
from sklearn import metrics as sklearn
from torchmetrics.functional.classification import binary_calibration_error, multiclass_jaccard_index

from attngraft.results import measured
from attngraft.results.measured import (
    ClosedForm,
    MeanAveragePrecision,
    MeanScore,
    Measured,
    SpearmanCorrelation,
    Statistic,
    calibration_error,
    macro_f1,
    macro_f1_of_labels,
    micro_f1_of_labels,
    r_squared,
    root_mean_squared_error,
)
from attngraft.tasks.calibration import calibration_statistic

N, CLASSES = 12, 4  # few examples, so that most resamples lack a class


@dataclass(frozen=True)
class Case:
    """A statistic of random examples, and its metric of the examples at given indices; NaN where it is undefined."""

    statistic: Statistic
    metric: Callable[[np.ndarray], float]


def mean_score(draw: np.random.Generator) -> Case:
    score = draw.normal(size=N)
    return Case(MeanScore(score), lambda at: float(score[at].mean()))


def rmse(draw: np.random.Generator) -> Case:
    predicted, target = draw.normal(size=(2, N))
    metric = sklearn.root_mean_squared_error
    return Case(root_mean_squared_error(predicted, target), lambda at: float(metric(target[at], predicted[at])))


def r2(draw: np.random.Generator) -> Case:
    target = draw.integers(3, size=N) + 1000.0  # far from zero, and constant in some resamples
    predicted = target + draw.normal(size=N)

    def metric(at: np.ndarray) -> float:
        return float(sklearn.r2_score(target[at], predicted[at])) if np.ptp(target[at]) else np.nan

    return Case(r_squared(predicted, target), metric)


def perplexity(draw: np.random.Generator) -> Case:
    tokens = draw.integers(1, 9, size=N)
    losses = [draw.exponential(size=length) for length in tokens]
    summands = np.array([[each.sum(), len(each)] for each in losses])
    statistic = ClosedForm(summands, lambda sums: np.exp(sums[:, 0] / sums[:, 1]))
    return Case(statistic, lambda at: float(np.exp(np.concatenate([losses[i] for i in at]).mean())))


def mean_iou(draw: np.random.Generator) -> Case:
    """Three margins per class and image, as for segmentation; a class is undefined where it neither is nor is predicted."""
    truth, given = draw.integers(CLASSES, size=(2, N, 5)) * draw.integers(2, size=(2, N, 1))
    one_hot = [np.eye(CLASSES)[labels] for labels in (truth, given)]
    margins = [one_hot[0] * one_hot[1], *one_hot]
    summands = sparse.csr_array(np.concatenate([each.sum(axis=1) for each in margins], axis=1))

    def iou(sums: np.ndarray) -> np.ndarray:
        both, first, second = np.split(sums, 3, axis=1)
        return both / (first + second - both)

    def metric(at: np.ndarray) -> float:
        labels = torch.from_numpy(given[at]), torch.from_numpy(truth[at])
        known = np.union1d(truth[at], given[at])
        return float(multiclass_jaccard_index(*labels, num_classes=CLASSES, average="none")[known].double().mean())

    return Case(ClosedForm(summands, iou), metric)


def f1_by_class(draw: np.random.Generator) -> Case:
    predicted, target = draw.integers(CLASSES, size=(2, N))

    def metric(at: np.ndarray) -> float:
        known = np.unique(target[at])
        return float(sklearn.f1_score(target[at], predicted[at], labels=known, average="macro"))

    return Case(macro_f1(predicted, target, classes=CLASSES), metric)


def labels(draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    predicted, target = draw.random((2, N, CLASSES)) < [0.1, 0.3, 0.5, 0.7]
    return predicted, target


def f1_of_labels(draw: np.random.Generator) -> Case:
    predicted, target = labels(draw)

    def metric(at: np.ndarray) -> float:
        known = target[at].any(axis=0)
        values = sklearn.f1_score(target[at], predicted[at], average=None, zero_division=0.0)
        return float(values[known].mean()) if known.any() else np.nan

    return Case(macro_f1_of_labels(predicted, target), metric)


def f1_of_all_labels(draw: np.random.Generator) -> Case:
    predicted, target = labels(draw)

    def metric(at: np.ndarray) -> float:
        return float(sklearn.f1_score(target[at], predicted[at], average="micro", zero_division=np.nan))

    return Case(micro_f1_of_labels(predicted, target), metric)


def calibration(draw: np.random.Generator) -> Case:
    stated, true = draw.random((N, 2)).astype(np.float32), draw.random((N, 2)) < 0.5

    def metric(at: np.ndarray) -> float:
        pair = torch.from_numpy(stated[at].reshape(-1)), torch.from_numpy(true[at].reshape(-1).astype(int))
        return float(binary_calibration_error(*pair, n_bins=15, norm="l1"))

    return Case(calibration_statistic(stated, true), metric)


def average_precision(draw: np.random.Generator) -> Case:
    scores, truth = draw.integers(5, size=(N, CLASSES)) / 4, labels(draw)[1]  # with ties

    def metric(at: np.ndarray) -> float:
        known = np.flatnonzero(truth[at].any(axis=0))
        values = [sklearn.average_precision_score(truth[at][:, i], scores[at][:, i]) for i in known]
        return float(np.mean(values)) if values else np.nan

    return Case(MeanAveragePrecision(scores, truth), metric)


def spearman(draw: np.random.Generator) -> Case:
    predicted, target = draw.integers(4, size=(2, N)).astype(float)  # with ties

    def metric(at: np.ndarray) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one of them is constant
            return float(spearmanr(predicted[at], target[at]).statistic)

    return Case(SpearmanCorrelation(predicted, target), metric)


CASES = [mean_score, rmse, r2, perplexity, mean_iou, f1_by_class, f1_of_labels, f1_of_all_labels, calibration]
CASES += [average_precision, spearman]


def counts_of(indices: np.ndarray, examples: int = N) -> np.ndarray:
    return np.stack([np.bincount(each, minlength=examples) for each in indices]).astype(float)


@pytest.fixture(params=CASES, ids=lambda make: make.__name__)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param(np.random.default_rng(len(request.param.__name__)))
    return found


def resamples(size: int = N, *, number: int = 40) -> np.ndarray:
    return np.random.default_rng(1).integers(N, size=(number, size))


@pytest.mark.parametrize("size", [2, N])  # two examples lack classes, and are constant in every third resample
def test_value_is_the_metric_of_the_resampled_examples(case: Case, size: int) -> None:
    indices = resamples(size)
    expected = [case.metric(each) for each in indices]
    np.testing.assert_allclose(case.statistic.value(counts_of(indices)), expected, rtol=1e-5, atol=1e-7)
    assert case.statistic.point == pytest.approx(case.metric(np.arange(N)), rel=1e-5)


def test_counts_may_be_multiples_and_examples_in_any_order(case: Case) -> None:
    indices, counts = resamples(), counts_of(resamples())
    values = case.statistic.value(counts)
    np.testing.assert_allclose(case.statistic.value(3 * counts), values, rtol=1e-6)
    order = np.random.default_rng(2).permutation(N)
    np.testing.assert_allclose(case.statistic.take(order).value(counts[:, order]), values, rtol=1e-6)
    points = [case.statistic.take(each).point for each in indices]
    np.testing.assert_allclose(points, values, rtol=1e-6)


def test_leave_one_out_by_its_closed_form_and_in_parts(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [case.metric(np.delete(np.arange(N), each)) for each in range(N)]
    np.testing.assert_allclose(case.statistic.leave_one_out(), expected, rtol=1e-5)
    np.testing.assert_allclose(Statistic.leave_one_out(case.statistic), expected, rtol=1e-5)
    monkeypatch.setattr(measured, "_LEFT_OUT_AT_ONCE", 5 * N)
    np.testing.assert_allclose(case.statistic.leave_one_out(), expected, rtol=1e-5)


def test_nothing_is_defined_without_examples(case: Case) -> None:
    assert np.isnan(case.statistic.value(np.zeros((2, N)))).all()


def test_both_ways_to_rank_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products for classes with few positives, cumulative sums for others; resamples in parts."""
    counts = counts_of(resamples())
    by_product = average_precision(np.random.default_rng(0)).statistic
    values, cost = by_product.parts(counts), by_product.cost
    monkeypatch.setattr(measured, "_FEW_POSITIVES", 0)
    monkeypatch.setattr(measured, "_ROWS_IN_CACHE", 7 * N)
    by_sum = average_precision(np.random.default_rng(0)).statistic
    np.testing.assert_allclose(by_sum.parts(counts), values, rtol=1e-12)
    assert by_sum.cost > cost


def test_a_class_that_is_left_out_is_undefined() -> None:
    truth = np.array([[True, False], [False, True], [False, False]])
    statistic = MeanAveragePrecision(np.array([[0.9, 0.1], [0.1, 0.2], [0.5, 0.9]]), truth)
    parts = statistic.parts(np.array([[1.0, 1, 1], [1, 0, 2], [0, 0, 3]]))
    np.testing.assert_allclose(parts, [[1, 0.5], [1, np.nan], [np.nan, np.nan]])
    np.testing.assert_allclose(statistic.value(np.array([[1.0, 1, 1], [1, 0, 2], [0, 0, 3]])), [0.75, 1, np.nan])


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_ranks_with_any_ties(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 9))
    few = st.lists(st.integers(0, 3), min_size=size, max_size=size)
    predicted, target, counts = (np.array(data.draw(few), dtype=float) for _ in range(3))
    at = np.repeat(np.arange(size), counts.astype(int))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = spearmanr(predicted[at], target[at]).statistic if len(at) > 1 else np.nan
    found = SpearmanCorrelation(predicted, target).value(counts[None])[0]
    np.testing.assert_allclose(found, expected, atol=1e-9)
    truth = target > 1
    precision = MeanAveragePrecision(predicted[:, None], truth[:, None]).value(counts[None])[0]
    expected = sklearn.average_precision_score(truth[at], predicted[at]) if truth[at].any() else np.nan
    np.testing.assert_allclose(precision, expected, atol=1e-9)


@given(st.lists(st.tuples(st.floats(-100, 100), st.integers(0, 5)), min_size=1, max_size=9))
def test_means_by_any_counts(pairs: list[tuple[float, int]]) -> None:
    score, counts = np.array([score for score, _ in pairs]), np.array([[count for _, count in pairs]], dtype=float)
    expected = np.repeat(score, counts[0].astype(int)).mean() if counts.any() else np.nan
    np.testing.assert_allclose(MeanScore(score).value(counts), [expected], atol=1e-9)
    again = ClosedForm(np.stack([score, np.ones(len(score))], axis=1), lambda sums: sums[:, 0] / sums[:, 1])
    np.testing.assert_allclose(again.value(counts), [expected], atol=1e-9)


def test_calibration_error_by_hand() -> None:
    """Gaps of 0.2 and -0.6 in one bin, 0.1 in another: (|-0.4| + |0.1|) / 3."""
    statistic = calibration_error(np.array([[0.2, 0], [-0.6, 0], [0, 0.1]]))
    assert statistic.point == pytest.approx(0.5 / 3)


def test_a_statistic_has_a_value() -> None:
    with pytest.raises(ValueError, match="statistics without a value: top1"):
        Measured(values={"loss": 1.0}, statistics={"top1": MeanScore(np.ones(2))})


@pytest.mark.parametrize("kept", [1, 10_000])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_examples_of_parts_are_those_with_a_value(
    kept: int, form: Callable[[np.ndarray], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "_LEFT_OUT_AT_ONCE", kept)
    summands = np.array([[1, 0, 2, 3], [0, 0, 1, 0], [2, 0, 2, 0]])
    statistic = ClosedForm(form(summands), lambda sums: sums[:, :2] / sums[:, 2:])
    assert statistic.examples_of_parts().tolist() == [3, 1]
