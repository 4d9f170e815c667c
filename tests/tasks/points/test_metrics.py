"""Part IoU by hand in the three conventions."""

from __future__ import annotations

import numpy as np
import pytest

from attngraft.results.records import RecordTable
from attngraft.tasks.points.metrics import category_means, constant_statistics, measure, part_statistics

OWN = [0, 1, 2]  #: parts of the shape's category, of five


def scores(*predicted: int, second: int | None = None) -> np.ndarray:
    """Probabilities whose argmax is `predicted`; the `second` best part is the same everywhere."""
    found = np.zeros((len(predicted), 5))
    found[np.arange(len(predicted)), predicted] = 1
    if second is not None:
        found[:, second] += 0.5
    return found


def test_a_part_that_is_neither_there_nor_predicted_counts_as_one_in_two_conventions() -> None:
    found = part_statistics(scores(0, 0, 1, 1), np.array([0, 0, 0, 1]), OWN, parts=5)
    assert found["iou_present"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found["iou_category"] == found["iou_all"] == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert found["correct"] == 0.75
    assert found["true"].tolist() == [3, 1, 0, 0, 0]


def test_a_part_that_is_predicted_but_not_there_counts_as_zero_in_two_conventions() -> None:
    found = part_statistics(scores(0, 0, 2, 1), np.array([0, 0, 0, 1]), OWN, parts=5)
    assert found["iou_present"] == pytest.approx((2 / 3 + 1) / 2)
    assert found["iou_category"] == found["iou_all"] == pytest.approx((2 / 3 + 1 + 0) / 3)


def test_parts_of_other_categories_cannot_be_predicted_in_one_convention() -> None:
    found = part_statistics(scores(4, 4, 4, 1, second=0), np.array([0, 0, 0, 1]), OWN, parts=5)
    assert found["iou_present"] == pytest.approx((0 + 1) / 2)
    assert found["iou_category"] == pytest.approx(1.0)
    assert found["iou_all"] == pytest.approx((0 + 1 + 1) / 3)
    assert found["correct"] == 0.25


def test_a_category_with_one_part() -> None:
    found = part_statistics(scores(4, 4), np.array([3, 3]), [3], parts=5)
    assert [float(found[f"iou_{name}"]) for name in ("present", "category", "all")] == [0.0, 1.0, 0.0]


def test_means_over_shapes_and_over_categories() -> None:
    ious = np.array([1.0, 0.5, 0.0])
    columns = {f"iou_{name}": ious for name in ("present", "category", "all")}
    columns |= {"category": np.array([2, 2, 0]), "correct": ious}
    values = measure(RecordTable(names=np.array(["a", "b", "c"]), columns=columns)).values
    assert values["instance_miou_present"] == pytest.approx(0.5)
    assert values["class_miou_present"] == pytest.approx((0.75 + 0) / 2)
    means = category_means(columns["category"], ious, 4)
    np.testing.assert_allclose(means, [0, np.nan, 0.75, np.nan])


def test_constant_predictions() -> None:
    """As those of a model that predicts the part everywhere."""
    true = np.array([0, 0, 0, 1])
    found = constant_statistics(np.bincount(true, minlength=5), OWN, 0)
    expected = part_statistics(scores(0, 0, 0, 0), true, OWN, parts=5)
    assert found == {name: expected[name] for name in found}
