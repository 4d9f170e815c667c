from __future__ import annotations

from dataclasses import replace

from attngraft.report.forest import difference_range
from attngraft.results.study import Interval
from tests.report import studies


def test_the_range_holds_zero_the_points_and_the_bootstrap_intervals():
    for make in studies.ALL.values():
        study = make()
        low, high = difference_range(study)
        assert low < 0 < high
        for variant in study.variants:
            if variant.difference is not None:
                assert low < variant.difference.bootstrap.low <= variant.difference.bootstrap.high < high


def test_a_boundless_t_interval_does_not_squeeze_the_rest():
    study = studies.usual()
    found = study.variants[1]
    wide = replace(found.difference, t=Interval(point=found.difference.mean, low=-9.0, high=9.0))
    low, high = difference_range(replace(study, variants=[study.variants[0], replace(found, difference=wide)]))
    assert high - low < 0.1


def test_no_difference_at_all_still_has_a_range():
    study = studies.usual()
    nothing = Interval(point=0.0, low=0.0, high=0.0)
    zero = replace(study.variants[1].difference, mean=0.0, bootstrap=nothing, t=nothing)
    low, high = difference_range(replace(study, variants=[replace(study.variants[1], difference=zero)]))
    assert low < 0 < high
