"""Metrics of predicted numbers (N, K), and report sections from saved predictions."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from attngraft.results.measured import (
    MeanOfStatistics,
    MeanScore,
    Measured,
    SpearmanCorrelation,
    Statistic,
    r_squared,
    root_mean_squared_error,
)
from attngraft.results.records import RecordTable
from attngraft.results.sections import Cell, Column, Section, Table

Arrays = Mapping[str, np.ndarray]

BINS = 5  #: number of groups of images by true number, in the report


def measure(table: RecordTable) -> Measured:
    """Return `rmse`, `mae`, `r2` and `spearman`; for several target columns, the means over the columns."""
    statistics = _statistics(table.array("predicted"), table.array("target"))
    return Measured(values={name: statistic.point for name, statistic in statistics.items()}, statistics=statistics)


def _statistics(predicted: np.ndarray, target: np.ndarray) -> dict[str, Statistic]:
    return {
        "rmse": _over_numbers(root_mean_squared_error, predicted, target),
        "mae": MeanScore(np.abs(predicted - target).mean(axis=1)),
        "r2": _over_numbers(r_squared, predicted, target),
        "spearman": _over_numbers(SpearmanCorrelation, predicted, target),
    }


def _over_numbers(
    make: Callable[[np.ndarray, np.ndarray], Statistic], predicted: np.ndarray, target: np.ndarray
) -> Statistic:
    statistics = [make(*each) for each in zip(predicted.T, target.T, strict=True)]
    return statistics[0] if len(statistics) == 1 else MeanOfStatistics(statistics)


def sections(predictions: Sequence[Arrays], *, names: Sequence[str]) -> list[Section]:
    """Return tables of errors and of predicted against true values for each number, averaged over seeds."""
    target = predictions[0]["target"]
    predicted = [each["predicted"] for each in predictions]
    return [_errors(predicted, target, names), _against_truth(predicted, target, names)]


def _errors(predicted: Sequence[np.ndarray], target: np.ndarray, names: Sequence[str]) -> Section:
    columns = [
        Column(name="number", kind="text"),
        Column(name="deviation", role="common"),
        Column(name="RMSE", role="compared"),
        Column(name="MAE"),
        Column(name="R²", role="compared"),
        Column(name="Spearman"),
    ]
    rows: list[list[Cell]] = []
    for index, name in enumerate(names):
        truth = target[:, [index]]
        by_seed = [[each.point for each in _statistics(run[:, [index]], truth).values()] for run in predicted]
        rows.append([name, float(truth.std()), *map(_finite, np.mean(by_seed, axis=0))])
    return Section(
        name="numbers",
        title="Number by number",
        note="Means over seeds, on the evaluated images, in the units of the data. Deviation: the standard deviation of "
        "the true numbers, which is the RMSE of always predicting their mean.",
        table=Table(columns=columns, rows=rows),
    )


def _against_truth(predicted: Sequence[np.ndarray], target: np.ndarray, names: Sequence[str]) -> Section:
    columns = [
        Column(name="true number", kind="text"),
        Column(name="images", kind="count", role="common"),
        Column(name="mean", role="common"),
        Column(name="predicted", role="compared"),
        Column(name="RMSE"),
    ]
    rows: list[list[Cell]] = []
    mean = np.mean(predicted, axis=0)
    squared = np.mean([(each - target) ** 2 for each in predicted], axis=0)
    for index, name in enumerate(names):
        truth = target[:, index]
        for part in np.array_split(np.argsort(truth, kind="stable"), min(BINS, len(truth))):
            values = truth[part]
            rows.append(
                [
                    f"{name} {values.min():.4g} to {values.max():.4g}",
                    len(part),
                    float(values.mean()),
                    _finite(mean[part, index].mean()),
                    _finite(np.sqrt(squared[part, index].mean())),
                ]
            )
    return Section(
        name="predicted",
        title="Predicted against true",
        note="The evaluated images in groups of equal size by their true number: the means of the true and of the predicted "
        "numbers. Predictions that shrink towards the mean are too high in the first groups and too low in the last.",
        table=Table(columns=columns, rows=rows),
    )


def _finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None
