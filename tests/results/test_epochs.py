"""Epochs to the baseline's best mean: on curves small enough to count by hand."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from attngraft.results.statistics import epochs_to_baseline
from attngraft.results.storage import RESULT_FILE, load_result, save_result
from attngraft.results.study import EpochsToBaseline, RunSummary
from tests.report import studies


def a_run(seed: int, *values: float) -> RunSummary:
    curve = {"epoch": [1.0 + i for i in range(len(values))], "val/top1": list(values)}
    return RunSummary(seed=seed, folder="", last={}, best={}, best_epoch=1, curve=curve, seconds=0.0)


BASELINE = [a_run(0, 0.1, 0.3, 0.5, 0.4), a_run(1, 0.1, 0.1, 0.3, 0.4)]  # mean 0.1, 0.2, 0.4, 0.4


def asked(*runs: RunSummary, baseline: list[RunSummary] = BASELINE) -> EpochsToBaseline:
    found = epochs_to_baseline(runs, baseline, key="val/top1", higher_is_better=True)
    assert found is not None
    return found


def test_the_ratio_is_of_mean_curves():
    found = asked(a_run(0, 0.2, 0.6, 0.1, 0.1), a_run(1, 0.2, 0.2, 0.3, 0.4))  # mean 0.2, 0.4: at epoch 2
    assert found.target == pytest.approx(0.4)
    assert (found.baseline_epoch, found.of_mean_curve) == (3, 2)
    assert found.ratio == pytest.approx(2 / 3)
    assert found.speed_up == pytest.approx(1.5)
    assert found.by_seed == {0: 2, 1: 4}
    assert [found.ratio_of(seed) for seed in (0, 1, 2)] == [pytest.approx(2 / 3), pytest.approx(4 / 3), None]


def test_the_baseline_needs_its_own_epochs():
    found = asked(*BASELINE)
    assert (found.ratio, found.speed_up) == (1, 1)


def test_with_one_seed_it_is_the_papers_ratio():
    found = asked(a_run(0, 0.2, 0.5, 0.6), baseline=BASELINE[:1])
    assert (found.target, found.ratio) == (0.5, pytest.approx(2 / 3))


def test_never_is_undefined():
    found = asked(a_run(0, 0.1, 0.2, 0.3, math.nan))
    assert (found.of_mean_curve, found.ratio, found.speed_up) == (None, None, None)
    assert found.ratio_of(0) is None


def test_where_lower_is_better():
    baseline, variant = [a_run(0, 9.0, 4.0, 5.0)], [a_run(0, 4.0, 3.0, 3.0)]
    found = epochs_to_baseline(variant, baseline, key="val/top1", higher_is_better=False)
    assert found is not None
    assert (found.target, found.ratio, found.speed_up) == (4.0, 0.5, 2.0)


def test_nothing_to_compare():
    for runs, baseline in (([], BASELINE), (BASELINE, []), (BASELINE, [a_run(0, math.nan)])):
        assert epochs_to_baseline(runs, baseline, key="val/top1", higher_is_better=True) is None


def test_results_from_before_the_ratio_are_read_and_drawn(tmp_path: Path):
    from attngraft.report.page import report_html

    study = studies.usual()
    save_result(study, tmp_path)
    content = json.loads((tmp_path / RESULT_FILE).read_text())
    assert content["variants"][2]["epochs_to_baseline"]["ratio"] == pytest.approx(10 / 12)
    for variant in content["variants"]:
        for name in ("baseline_epoch", "ratio", "speed_up"):
            del variant["epochs_to_baseline"][name]
    (tmp_path / RESULT_FILE).write_text(json.dumps(content))
    old = load_result(tmp_path)
    reached = old.variants[2].epochs_to_baseline
    assert reached is not None
    assert reached.by_seed == study.variants[2].epochs_to_baseline.by_seed  # type: ignore[union-attr]
    assert dataclasses.asdict(reached)["ratio"] is None
    assert 'id="epochs"' not in report_html(old)
    assert 'id="epochs"' in report_html(study)
