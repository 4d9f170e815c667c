"""Findings as files in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngraft.analysis.catalog import load_analysis
from attngraft.report import analyses
from attngraft.results.analysis import AnalysisResult
from attngraft.results.sections import Column, Table


def test_an_error_in_drawing_loses_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = AnalysisResult(
        name="entropy",
        title="How spread",
        note="",
        source="",
        subjects=["a"],
        panels=[],
        table=Table(columns=[Column(name="model", kind="text")], rows=[["a"]]),
    )

    def fails(finding: AnalysisResult) -> dict[str, bytes]:
        raise RuntimeError("no font")

    monkeypatch.setattr(analyses, "finding_plots", fails)
    with pytest.raises(RuntimeError, match="no font"):
        analyses.write_analyses([finding], tmp_path, title="x")
    assert load_analysis(tmp_path / "entropy.json").table == finding.table
    assert (tmp_path / "entropy.csv").is_file()
