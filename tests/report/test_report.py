from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from attngraft.errors import FolderError
from attngraft.report import figures, write_report
from attngraft.report.figures import plot_files
from attngraft.report.page import report_html
from attngraft.results.storage import load_result, save_result
from tests.report import studies


@pytest.mark.slow
def test_the_report_is_written_and_stale_plots_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(figures, "plot_files", plot_files)
    path = write_report(studies.usual(), tmp_path)
    assert path == tmp_path / "report.html"
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert len(list((tmp_path / "plots").iterdir())) == 20
    (tmp_path / "plots" / "mine.png").write_bytes(b"not ours")
    write_report(studies.only_baseline(), str(tmp_path))
    left = sorted(file.name for file in (tmp_path / "plots").iterdir())
    assert left == ["curves-dark.png", "curves-dark.svg", "curves.png", "curves.svg", "mine.png"]


def test_plots_are_not_written_through_a_link(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    kept = tmp_path / "elsewhere" / "curves.png"
    kept.write_text("mine")
    (tmp_path / "plots").symlink_to("elsewhere")
    with pytest.raises(FolderError, match="plots: is a link, through which nothing is written; delete it"):
        write_report(studies.only_baseline(), tmp_path)
    assert [*kept.parent.iterdir()] == [kept]


@pytest.mark.parametrize(
    "name",
    [
        "with_hostile_names",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("one_seed", "with_failed_runs", "without_costs", "with_sections")
        ),
    ],
)
def test_a_result_read_back_gives_the_same_page(tmp_path: Path, name: str):
    study = studies.ALL[name]()
    save_result(study, tmp_path)
    assert report_html(load_result(tmp_path)) == report_html(replace(study, folder=tmp_path))


def test_importing_the_report_is_light():
    code = "import sys, attngraft.report; print([m for m in ('torch', 'matplotlib', 'jinja2', 'rich') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
