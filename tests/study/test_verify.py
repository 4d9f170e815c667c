"""Verification of studies, runs and exported models finds any changed byte of what they rest on."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from attngraft.cli import app
from attngraft.errors import AttngraftError, FolderError
from attngraft.export.run import export_run
from attngraft.results.storage import read_study
from attngraft.study import Tools, compare
from attngraft.study.runner import report_only
from attngraft.study.verify import verify
from tests.study.test_end_to_end import tiny

#: spares, locks, logs and pages; checked by nothing


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study") / "out"
    compare(tiny(out, grafts=["cb"], seeds=1, epochs=1), tools=Tools(write_report=lambda result, folder: folder))
    return out


@pytest.fixture(scope="module")
def exported(study: Path) -> Path:
    return export_run(study / "runs" / "cb" / "seed0", study.parent / "exported").folder


def test_an_intact_study_has_no_problems(study: Path, exported: Path) -> None:
    for folder in (study, study / "runs" / "cb" / "seed0", exported):
        found = verify(folder)
        assert (found.problems, found.notes) == ([], [])
        assert found.files >= 3
    with pytest.raises(FolderError, match="not a run, a study or an exported model"):
        verify(study.parent)


def test_results_are_checked_when_they_are_read(study: Path) -> None:
    whole = (study / "results.json").read_text()
    (study / "results.json").write_text(whole.replace("0.0", "0.9", 1))
    try:
        with pytest.raises(AttngraftError, match=r"results\.json: damaged .*attngraft compare --report-only"):
            read_study(study)
        report_only(
            tiny(study, grafts=["cb"], seeds=1, epochs=1), tools=Tools(write_report=lambda result, folder: folder)
        )
        assert read_study(study).variants
    finally:
        assert verify(study).problems == []


def test_the_command_names_the_files_and_fails(study: Path) -> None:
    path = study / "runs" / "cb" / "seed0" / "metrics.jsonl"
    whole = path.read_bytes()
    assert "problems: 0" in CliRunner().invoke(app, ["doctor", "--verify", str(study)]).output
    path.write_bytes(whole + b"\n")
    try:
        result = CliRunner().invoke(app, ["doctor", "--verify", str(study)])
        assert result.exit_code == 1
        assert f"{path}: damaged" in result.output
    finally:
        path.write_bytes(whole)


def test_a_changed_split_gets_no_new_checksum(study: Path) -> None:
    whole = (study / "split.csv").read_bytes()
    (study / "split.csv").unlink()  # the runs share the file
    (study / "split.csv").write_bytes(whole.replace(b",val", b",train", 1))
    try:
        with pytest.raises(AttngraftError, match=r"split\.csv: changed since the report was written .*copy that of a"):
            report_only(
                tiny(study, grafts=["cb"], seeds=1, epochs=1), tools=Tools(write_report=lambda _, folder: folder)
            )
    finally:
        (study / "split.csv").write_bytes(whole)


def test_damaged_costs_are_measured_again(study: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = (study / "cost.json").read_bytes()
    (study / "cost.json").write_bytes(whole.replace(b"1", b"2", 1))
    config = tiny(study, grafts=["cb"], seeds=1, epochs=1)
    with caplog.at_level("WARNING"):
        result = report_only(config, tools=Tools(write_report=lambda result, folder: folder))
    assert "cost.json: damaged (its SHA-256 is wrong); removed" in caplog.text
    assert "Costs were not measured." in result.notes
    assert not (study / "cost.json").exists()
    assert verify(study).problems == []
