"""Calibration against torchmetrics, and means with missing values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from attngraft.tasks.calibration import calibration_statistic, mean_over_seeds, reliability, share_or_none


def _seed(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(300, 4, generator=stream).softmax(-1), torch.randint(0, 4, (300,), generator=stream)


def test_the_error_is_torchmetrics_and_the_bins_give_it_too() -> None:
    expected, stated, true = [], [], []
    for seed in range(3):
        shares, target = _seed(seed)
        expected.append(float(multiclass_calibration_error(shares, target, num_classes=4, n_bins=15)))
        best = shares.max(-1)
        stated.append(best.values.numpy())
        true.append((best.indices == target).numpy())
    assert reliability(stated, true).error_by_seed == pytest.approx(expected, rel=1e-5)
    one = reliability(stated[:1], true[:1])
    gaps = [
        n * abs(p - q)
        for n, p, q in zip(one.counts, one.stated, one.observed, strict=True)
        if p is not None and q is not None
    ]
    assert sum(gaps) / 300 == pytest.approx(expected[0], rel=1e-5)
    assert sum(reliability(stated, true).counts) == 900


def test_the_ends_of_the_scale_and_empty_bins() -> None:
    found = reliability([np.array([0.0, 1.0, 1.0])], [np.array([False, True, False])], bins=4)
    assert found.counts == [1, 0, 0, 2]
    assert found.stated == [0.0, None, None, 1.0]
    assert found.observed == [0.0, None, None, 0.5]
    assert found.error_by_seed == pytest.approx([1 / 3])


def test_a_confidence_of_1_is_in_the_last_bin_with_its_neighbors() -> None:
    """Of 15: half of 100 images at 1, of which 45 are right, and half at 0.95, all right; |0.975 - 0.95|, not the mean of
    0.1 and 0.05. A study's difference to a model without any error is the same number."""
    stated = np.repeat([1.0, 0.95], 50).astype(np.float32)
    true = np.arange(100) % 50 < np.repeat([45, 50], 50)
    found = reliability([stated, stated[::-1].copy()], [true, true[::-1]])
    assert found.counts == [0] * 14 + [200]
    assert found.stated[-1] == pytest.approx(0.975, abs=1e-7)
    assert found.error_by_seed == pytest.approx([0.025, 0.025], abs=1e-7)
    exact = calibration_statistic(np.ones((100, 1)), np.ones((100, 1), dtype=bool))
    variant = calibration_statistic(stated[:, None], true[:, None])
    assert exact.point == 0
    assert variant.point == pytest.approx(found.error_by_seed[0], abs=1e-12)


def test_means_leave_out_what_is_not_there() -> None:
    assert share_or_none(np.array([1, 0]), np.array([4, 0])) == [0.25, None]
    assert mean_over_seeds([[1.0, None, None], [3.0, 2.0, None]]) == [2.0, 2.0, None]
