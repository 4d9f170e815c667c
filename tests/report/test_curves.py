from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from attngraft.report.curves import POINTS, CurvePanel, curve_figures
from attngraft.report.page import report_html
from tests.report import studies


def points(panel: CurvePanel) -> list[list[float | None]]:
    return json.loads(ElementTree.fromstring(panel.svg).get("data-points", ""))


def test_a_panel_per_variant_with_the_baseline_as_reference():
    study = studies.usual()
    metric, difference, loss = curve_figures(study)
    assert [figure.key for figure in (metric, difference, loss)] == ["metric", "difference", "train-loss"]
    for figure in (metric, difference, loss):
        assert [panel.index for panel in figure.panels] == [1, 2, 3, 4]
    last = points(metric.panels[1])[-1]
    assert last[0] == study.epochs
    assert last[1] == pytest.approx(100 * study.variants[2].last["top1"].mean, rel=1e-3)
    assert last[2] <= last[1] <= last[3]
    assert last[4] == pytest.approx(100 * study.variants[0].last["top1"].mean, rel=1e-3)
    assert points(difference.panels[1])[-1][4] is None


def test_the_other_validation_metrics_have_curves() -> None:
    """They are those that variants are compared by; each is selected by its place."""
    study = studies.usual()
    gaps = dict.fromkeys(("loss", "unrecorded"), study.variants[1].difference)
    for index, each in enumerate(study.variants):
        runs = [replace(run, curve={**run.curve, "val/loss": run.curve["train/loss"]}) for run in each.runs]
        study.variants[index] = replace(each, runs=runs, other_differences=gaps if index else {})
    figures = curve_figures(study)
    assert [figure.key for figure in figures] == ["metric", "difference", "loss", "train-loss"]
    assert [panel.svg.count('class="log"') for panel in figures[2].panels] == [1, 1, 1, 1]
    html = report_html(study)
    for place in range(4):
        assert f'[value="{place}"]:checked) > [data-quantity="{place}"]' in html
        assert html.count(f'<figure class="multiples" data-quantity="{place}"') == 1


def test_losses_have_a_logarithmic_scale():
    metric, difference, loss = curve_figures(studies.usual())
    assert (metric.log, difference.log, loss.log) == (False, False, True)
    for figure in (metric, difference, loss):
        names = [group.get("class") for group in ElementTree.fromstring(figure.panels[0].svg).iter("g")]
        assert names == (["linear", "log"] if figure.log else ["linear"])


def test_a_metric_without_a_unit_may_be_logarithmic():
    assert curve_figures(studies.translation())[0].log


def test_a_study_of_the_baseline_alone_has_its_curve():
    metric = curve_figures(studies.only_baseline())[0]
    assert [panel.index for panel in metric.panels] == [0]
    assert all(row[4] is None for row in points(metric.panels[0]))


def test_long_curves_are_thinned():
    study = studies.usual(seeds=1, epochs=3 * POINTS)
    found = points(curve_figures(study)[0].panels[0])
    assert len(found) == POINTS
    assert (found[0][0], found[-1][0]) == (1, 3 * POINTS)


def test_curves_of_odd_names_are_inert_and_well_formed():
    for figure in curve_figures(studies.with_hostile_names()):
        for panel in figure.panels:
            ElementTree.fromstring(panel.svg)
            assert "<script" not in panel.svg


def test_many_variants_fold_away_after_twelve():
    study = studies.usual(seeds=1, epochs=2)
    many = [study.variants[0], *(replace(study.variants[1 + i % 4], name=f"variant {i}") for i in range(14))]
    html = report_html(replace(study, variants=many))
    figure = re.search(r'<figure class="multiples" data-quantity="0".*?</figure>', html, re.DOTALL)[0]
    assert figure.count("<svg") == 14
    assert figure.partition("<details>")[0].count("<svg") == 12
    assert "2 more variants" in figure
