"""Epochs to the baseline's best, in words and in the tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attngraft.report.figures import study_figures
from attngraft.report.page import report_html
from attngraft.results.storage import csv_rows
from attngraft.results.wording import added_parameters, epochs_compared, epochs_ratio_text, epochs_sentence
from tests.report import studies
from tests.report.test_page import Page


def test_sentences():
    study = studies.usual()
    said = {variant.name: epochs_sentence(variant, reached, 12) for _, variant, reached in epochs_compared(study)}
    assert said["cb_s"] == "cb_s: 17% fewer epochs (10 instead of 12; by seed 10, 10, 11); parameters +0.04%"
    assert said["vertical"] == "vertical: not within 12 epochs (by seed never, never, never); parameters +8.30%"
    assert "none" not in said


def test_who_is_not_epochs_compared():
    study = studies.usual()
    older = replace(study.variants[1].epochs_to_baseline, baseline_epoch=None, ratio=None, speed_up=None)
    variants = [study.variants[0], replace(study.variants[1], epochs_to_baseline=older), *study.variants[2:]]
    assert [variant.name for _, variant, _ in epochs_compared(replace(study, variants=variants))] == [
        variant.name for variant in study.variants[2:]
    ]
    assert epochs_compared(studies.only_baseline()) == []


def test_parameters_unknown_or_not_added():
    study = studies.usual()
    assert added_parameters(study.variants[1]) == "0%"
    assert added_parameters(replace(study.variants[1], cost=None)) == ""


def test_the_page_has_the_figure_and_its_numbers():
    study = studies.usual()
    page = Page(report_html(study))
    assert "epochs" in page.ids and "#epochs" in page.references
    assert ">12 not within 12 epochs +8.30%" in page.text.replace("\N{MINUS SIGN}", "-")
    (drawing,) = study_figures(study)["epochs"]
    assert "vertical: not within 12 epochs" in drawing.alt
    assert "17% fewer epochs" in drawing.alt


def test_the_csv_has_the_ratio():
    study = studies.usual()
    rows = csv_rows(study)
    reached = study.variants[2].epochs_to_baseline
    assert reached is not None
    assert rows[2]["epochs_to_baseline_ratio"] == reached.ratio
    assert rows[2]["epochs_to_baseline_speed_up"] == reached.speed_up
    assert (rows[0]["epochs_to_baseline_ratio"], rows[0]["epochs_of_baseline"]) == (1, 12)
    assert rows[4]["epochs_to_baseline_ratio"] is None


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.75, "25% fewer epochs"), (1.0, "as many epochs"), (1.083, "8% more epochs"), (None, "not within 12 epochs")],
)
def test_the_ratio_in_words(ratio, text):
    reached = studies.usual().variants[2].epochs_to_baseline
    assert reached is not None
    assert epochs_ratio_text(replace(reached, ratio=ratio), 12) == text
