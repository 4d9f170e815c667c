"""Metrics of label maps, by hand and against torchmetrics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from attngraft.results.measured import Measured
from attngraft.results.records import RecordTable
from attngraft.tasks.images.boundaries import IGNORED
from attngraft.tasks.segmentation.metrics import WIDTHS, boundary_curve, class_ious, mask_statistics, measure


def table(pairs: list[tuple[Tensor, Tensor]], classes: int, *, boundaries: bool = True) -> RecordTable:
    rows = [mask_statistics(*pair, classes, boundaries=boundaries) for pair in pairs]
    columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return RecordTable(names=np.array([str(index) for index in range(len(pairs))]), columns=columns)


def maps(count: int, classes: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    found = []
    for index in range(count):
        label = torch.randint(classes, (9 + index, 12), generator=generator).repeat_interleave(3, 0)
        noise = torch.rand(label.shape, generator=generator)
        predicted = torch.where(noise < 0.3, torch.randint(classes, label.shape, generator=generator), label)
        label[noise > 0.9] = IGNORED
        found.append((predicted, label))
    return found


def test_by_hand() -> None:
    """Class 2 is predicted and never true, class 3 neither; the ignored pixel does not count."""
    label = torch.tensor([[0, 0, 1, IGNORED]])
    predicted = torch.tensor([[0, 1, 1, 2]])
    other = torch.tensor([[2, 0]]), torch.tensor([[0, 0]])
    found = measure(table([(predicted, label), other], 4)).values
    assert found["miou"] == pytest.approx(np.mean([2 / 4, 1 / 2, 0]))
    assert found["macc"] == pytest.approx(np.mean([2 / 4, 1]))
    assert found["aacc"] == pytest.approx(3 / 5)
    np.testing.assert_allclose(class_ious(table([(predicted, label), other], 4)), [0.5, 0.5, 0, np.nan])


def test_nothing_labeled() -> None:
    found = measure(table([(torch.zeros(4, 4), torch.full((4, 4), IGNORED))], 3)).values
    assert all(np.isnan(value) for value in found.values())


def test_agrees_with_torchmetrics() -> None:
    classification = pytest.importorskip("torchmetrics.classification", reason="needs torchmetrics")
    pairs, classes = maps(6, 5), 5
    options = {"num_classes": classes, "ignore_index": IGNORED}
    iou = classification.MulticlassJaccardIndex(average="macro", **options)
    accuracy = classification.MulticlassAccuracy(average="micro", **options)
    recall = classification.MulticlassRecall(average="macro", **options)
    for predicted, label in pairs:
        for each in (iou, accuracy, recall):
            each.update(predicted[None], label[None])
    found = measure(table(pairs, classes)).values
    assert found["miou"] == pytest.approx(float(iou.compute()), abs=1e-6)
    assert found["aacc"] == pytest.approx(float(accuracy.compute()), abs=1e-6)
    assert found["macc"] == pytest.approx(float(recall.compute()), abs=1e-6)


def test_statistics_are_the_metrics_of_repeated_images() -> None:
    pairs = maps(5, 4)
    measured: Measured = measure(table(pairs, 4))
    counts = np.array([2, 0, 1, 3, 1])
    repeated = measure(table([pair for pair, count in zip(pairs, counts, strict=True) for _ in range(count)], 4))
    assert measured.values.keys() == measured.statistics.keys() == repeated.values.keys()
    for name, statistic in measured.statistics.items():
        assert statistic.value(counts[None])[0] == pytest.approx(repeated.values[name])


def test_light_inference_counts_no_boundaries() -> None:
    found = measure(table(maps(2, 4), 4, boundaries=False))
    assert set(found.values) == {"miou", "macc", "aacc"}


def test_boundaries_of_a_drawn_square() -> None:
    """The band of radius r on both sides of a vertical edge is 2 r pixels wide; errors elsewhere do not count."""
    label = torch.zeros(40, 60, dtype=torch.long)
    label[:, 30:] = 1
    predicted = label.clone()
    predicted[:, :10] = 1  # far from the edge
    predicted[:, 29] = 1  # next to it
    found = table([(predicted, label)], 2)
    true = found.array("boundary_true")[0].sum(1)
    assert true.tolist() == [40 * 2 * radius for radius in WIDTHS]
    expected = [np.mean([(radius - 1) / radius, radius / (radius + 1)]) for radius in WIDTHS]
    np.testing.assert_allclose(boundary_curve(found), expected)
    assert measure(found).values["boundary_miou"] == pytest.approx(expected[1])


def test_boundary_iou_is_one_for_equal_masks_and_sees_a_shift() -> None:
    label = torch.zeros(100, 100, dtype=torch.long)
    label[20:80, 20:80] = 1
    shifted = torch.roll(label, 2, dims=1)
    equal, moved = (measure(table([(each, label)], 2)).values for each in (label, shifted))
    assert equal["boundary_iou"] == equal["boundary_miou"] == 1
    assert moved["miou"] > 0.9
    assert moved["boundary_iou"] < 0.7
