from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from attngraft.report.tables import study_table
from attngraft.results import wording
from attngraft.results.power import power_sentences
from attngraft.results.storage import csv_rows, csv_text
from tests.report import studies
from tests.report.studies import table_text

every_study = pytest.mark.parametrize("study", [make() for make in studies.ALL.values()], ids=list(studies.ALL))


@every_study
@pytest.mark.parametrize("width", [80, 100])
def test_the_terminal_table_fits_and_cuts_nothing(study, width):
    text = table_text(study, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text and "…" not in text
    style = wording.metric_format(study)
    for variant in study.variants:
        if study.metric in variant.last:
            spread = variant.last[study.metric]
            assert wording.spread_text(spread.mean, spread.deviation, style) in text
        if variant.difference is not None:
            interval = wording.deciding_interval(variant.difference)
            assert style.bounds(interval) in text
            assert wording.p_value(variant.difference.p_holm) in text
        if variant.cost is not None and not variant.is_baseline:
            assert wording.ratio(variant.cost.parameters_ratio, exact=True) in text


def test_the_verdicts_stand_in_the_table():
    text = table_text(studies.usual(), width=80)
    assert "+1.51 better" in text
    assert "-1.89 worse" in text
    assert text.count("inside the noise") == 3  # two variants and the headline


def test_one_seed_is_said():
    text = table_text(studies.one_seed())
    assert "noise between seeds is unknown" in text.replace("\n", " ")
    assert "] examples only" in text
    assert "80% of cases" not in text


def test_what_could_have_been_found_stands_below_the_outcome():
    text = " ".join(table_text(studies.usual(), width=80).split())
    assert power_sentences(studies.usual()) in text


def test_lower_is_better_is_said():
    assert "Lower is better." in table_text(studies.translation())


def test_user_text_is_not_read_as_markup():
    sheet = io.StringIO()
    Console(file=sheet, width=200, force_terminal=True, color_system="truecolor").print(
        study_table(studies.with_hostile_names())
    )
    assert "[b]" in sheet.getvalue()
    assert "\x07" not in sheet.getvalue() and "\x00" not in sheet.getvalue()


def test_the_terminal_table_needs_no_unicode_terminal():
    text = table_text(studies.usual()).replace("─", "-")
    assert text.encode("latin-1").decode("latin-1") == text


@every_study
def test_csv_has_one_row_per_variant_and_reads_back(study):
    rows = csv_rows(study)
    assert [row["variant"] for row in rows] == [variant.name for variant in study.variants]
    assert len({tuple(row) for row in rows}) == 1
    read = list(csv.DictReader(io.StringIO(csv_text(study))))
    for variant, row in zip(study.variants, read, strict=True):
        mean = row[f"last_{study.metric}_mean"]
        assert mean == (repr(variant.last[study.metric].mean) if variant.last else "")
        assert row["verdict"] == (variant.difference.verdict if variant.difference else "")
        assert row["train_time_ratio"] == (
            repr(variant.cost.train_time_ratio.point) if variant.cost and variant.cost.train_time_ratio else ""
        )


def test_csv_has_every_seed():
    study = studies.with_failed_runs()
    rows = csv_rows(study)
    assert [rows[3][f"last_top1_seed{seed}"] is None for seed in study.seeds] == [False, False, True]
    assert rows[4]["seeds_finished"] == 0
