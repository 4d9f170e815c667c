"""Analysis results as files and pages."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from attngraft.analysis.catalog import load_analyses, load_analysis, save_analysis
from attngraft.drawing.panels import analysis_plots
from attngraft.report import analyses, write_report
from attngraft.report.analyses import analyses_html, analysis_csv, write_analyses
from attngraft.report.page import report_html
from tests.drawing.test_panels import ALL, CURVES, PICTURES, result
from tests.report.studies import HOSTILE, usual


def test_the_table_as_csv() -> None:
    rows = list(csv.reader(io.StringIO(analysis_csv(ALL))))
    assert rows == [["model", "n"], ["first", "1.5"], [HOSTILE, ""]]


def test_user_strings_are_inert() -> None:
    hostile = result(
        CURVES,
        PICTURES,
        title=HOSTILE,
        note=HOSTILE,
        source=HOSTILE,
        subjects=[HOSTILE, "b"],
        numbers={HOSTILE: 0.123456},
        left_out={HOSTILE: HOSTILE},
        made={"command": HOSTILE},
    )
    page = analyses_html([hostile], title=HOSTILE)
    assert "<script" not in page
    assert "0.1235" in page
    assert re.findall(r"(?:src|href)=\"https?://[^\"]+", page) == []
    assert "default-src 'none'; img-src data:;" in page
    assert analysis_plots(hostile)


@pytest.mark.slow
def test_a_folder_of_results(tmp_path: Path) -> None:
    page = write_analyses([ALL], tmp_path, title="mine")
    assert page == tmp_path / "analysis.html"
    write_analyses([result(CURVES, name="made-up-too")], tmp_path, title="mine")
    assert page.read_text(encoding="utf-8").count("<section") == 2
    write_analyses([result(CURVES)], tmp_path, title="mine")
    left = {path.name for path in tmp_path.iterdir()}
    assert "made-up-too.png" in left
    assert "made-up-3.png" not in left, "sheets of the earlier result are removed"
    assert [each.name for each in load_analyses(tmp_path)] == ["made-up", "made-up-too"]


def test_names_of_files_that_are_no_text_are_kept(tmp_path: Path) -> None:
    found = replace(result(PICTURES), title="\udcff.png")
    assert load_analysis(save_analysis(found, tmp_path)).title == found.title


@pytest.mark.slow
def test_a_studys_report_includes_its_analyses(tmp_path: Path) -> None:
    study = usual()
    without = report_html(study)
    assert "img-src" not in without
    assert 'class="analysis"' not in without
    save_analysis(result(PICTURES), tmp_path / "analysis")
    page = write_report(study, tmp_path).read_text(encoding="utf-8")
    assert 'href="#analysis-made-up"' in page
    assert page.count('class="analysis"') == 1
    assert "img-src data:" in page
    (tmp_path / "analysis" / "made-up.json").unlink()
    assert write_report(study, tmp_path).read_text(encoding="utf-8") == without


def test_an_error_while_drawing_does_not_lose_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(result: object) -> dict[str, bytes]:
        raise RuntimeError("no font")

    monkeypatch.setattr(analyses, "analysis_plots", fails)
    with pytest.raises(RuntimeError, match="no font"):
        write_analyses([ALL], tmp_path, title="x")
    assert load_analysis(tmp_path / "made-up.json").table == ALL.table
    assert (tmp_path / "made-up.csv").is_file()
