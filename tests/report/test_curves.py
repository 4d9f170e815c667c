from __future__ import annotations

import math

import pytest

from attngraft.report.curves import band, curve_bands, difference_bands
from tests.report import studies


def test_a_band_is_mean_and_range_over_the_seeds_that_have_the_epoch():
    found = band([{1.0: 2.0, 2.0: 4.0}, {1.0: 4.0}, {1.0: math.nan}])
    assert found.epochs == [1.0, 2.0]
    assert found.mean == [3.0, 4.0]
    assert (found.low, found.high) == ([2.0, 4.0], [4.0, 4.0])


def test_without_values_there_is_no_band():
    assert band([]) is None
    assert band([{1.0: math.inf}]) is None
    assert curve_bands(studies.usual(), "val/unknown") == [None] * 5


def test_differences_are_paired_by_seed():
    study = studies.usual()
    none, *grafted = difference_bands(study, "val/top1")
    assert none is None
    for variant, found in zip(study.variants[1:], grafted, strict=True):
        assert found.mean[-1] == pytest.approx(variant.difference.mean)
        assert found.low[-1] <= found.mean[-1] <= found.high[-1]


def test_a_variant_without_runs_has_no_band():
    assert difference_bands(studies.with_failed_runs(), "val/top1")[-1] is None
