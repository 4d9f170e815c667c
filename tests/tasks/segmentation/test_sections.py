"""Report sections of label maps, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from attngraft.results.records import RecordTable
from attngraft.study.verdict import compare_parts
from attngraft.tasks.segmentation.metrics import measure
from attngraft.tasks.segmentation.sections import sections


def table(right: list[list[int]], predicted: list[list[int]], true: list[list[int]]) -> RecordTable:
    columns = {"right": np.array(right), "predicted": np.array(predicted), "true": np.array(true)}
    return RecordTable(names=np.arange(len(right)).astype(str), columns=columns)


def test_classes_by_hand() -> None:
    """Two seeds of two images; the third class neither occurs nor is predicted."""
    true = [[4, 6, 0], [8, 2, 0]]
    first = table([[2, 6, 0], [8, 2, 0]], [[2, 8, 0], [8, 2, 0]], true)
    second = table([[4, 6, 0], [8, 0, 0]], [[4, 6, 0], [10, 0, 0]], true)
    (found,) = sections([first, second], classes=["sky", "road", "cat"], pixels=[30, 10, 0])
    assert found.table is not None
    (sky, road, cat) = found.table.rows
    assert sky == ["sky", 0.75, pytest.approx((10 / 12 + 12 / 14) / 2)]
    assert road == ["road", 0.25, pytest.approx((8 / 10 + 6 / 8) / 2)]
    assert cat == ["cat", 0.0, None]


def test_the_parts_of_the_metric_are_the_rows() -> None:
    """The differences of the parts are those of the rows, and one class is undefined for both."""
    generator = np.random.default_rng(0)
    true = np.concatenate([generator.integers(1, 50, (12, 3)), np.zeros((12, 1), int)], axis=1)
    runs = [
        [
            table((right := generator.binomial(true, 0.7)).tolist(), (right + 2 * (true > 0)).tolist(), true.tolist())
            for _ in range(2)
        ]
        for _ in range(2)
    ]
    names = ["a", "b", "c", "d"]
    before, after = (sections(each, classes=names, pixels=[1] * 4)[0].table for each in runs)
    assert before is not None and after is not None
    (metric,) = (column.parts_of for column in before.columns if column.parts_of)
    statistics = [[measure(run).statistics[metric] for run in each] for each in runs]
    found = compare_parts(*statistics)  # type: ignore[arg-type]
    for interval, row, other in zip(found[:3], before.rows, after.rows, strict=False):
        assert interval is not None and interval.low < interval.point < interval.high
        assert interval.point == pytest.approx(other[2] - row[2])  # type: ignore[operator]
    assert found[3] is None and before.rows[3][2] is None
