"""What an earlier release wrote is loaded, resumed, used and reported on as it was then.

The files are in `data/`; `make.py` says how they were made. Everything here goes through `python -m attngraft` and the
names in `attngraft.__all__`. Stored numbers that are read again are equal to the last digit. Computed ones are, too, on
the machine and the packages that made the files, and agree to a tolerance elsewhere.
"""

from __future__ import annotations

import csv
import io
import json
import runpy
import sys
import tarfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

import attngraft
from tests.compat import make
from tests.compat.make import DATA, filled, logits, processor, read_json

MADE = read_json(DATA / "run.json")
Run = Callable[..., str]
#: of a study: what nobody touches who only looks at what is there
LASTING = ("cost.json", "halving.json", "runs/**/metrics.jsonl", "runs/**/environment.json", "runs/**/predictions.npz")
LASTING += ("runs/**/*.pt", "runs/**/*.safetensors", "runs/**/*.parquet", "runs/**/events.*")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command as a user types it, in this process; its standard output is returned."""

    def typed(*arguments: object) -> str:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["attngraft", *map(str, arguments)])
        monkeypatch.setattr("attngraft.cli.leave_now", sys.exit)  # which would end this process
        with pytest.raises(SystemExit) as stop:
            runpy.run_module("attngraft", run_name="__main__")
        told = capsys.readouterr()
        assert not stop.value.code, told.err
        return told.out

    return typed


@pytest.fixture
def old(tmp_path: Path) -> Callable[[str], Path]:
    """A folder that the earlier release made, for a test to use and change."""

    def unpacked(name: str) -> Path:
        with tarfile.open(DATA / f"{name}.tar.xz") as archive:
            archive.extractall(tmp_path, filter="data")
        return tmp_path / name

    return unpacked


def test_a_finished_run_is_finished(old: Any, run: Run) -> None:
    folder = old("run")
    before = contents(folder)
    told = json.loads(run(*make.RUN, "--out", folder, "--json"))
    assert told["epochs"] == rows(folder)
    assert told["finished"] is True
    assert contents(folder) == before


@pytest.mark.parametrize("weights", ["last", "best", "ema", "best-ema"])
def test_a_run_is_evaluated(old: Any, run: Run, weights: str) -> None:
    told = json.loads(run("eval", old("run"), "--weights", weights, "--json"))
    assert_same(told["metrics"], MADE["evaluated"][weights])
    assert told["examples"] == 90


def test_a_run_answers_for_images(old: Any, run: Run) -> None:
    folder = old("run")
    assert_answers(run(*make.PREDICT, folder, DATA / "images"), "predicted")
    assert_answers(run(*make.PREDICT, folder, DATA / "images", "--checkpoint", "best-ema"), "predicted by best-ema")


@pytest.mark.parametrize("model", ["", "model.onnx", "model.pt2"])
def test_an_exported_model_answers_for_images(old: Any, run: Run, model: str) -> None:
    if model.endswith(".onnx"):
        pytest.importorskip("onnxruntime")
    if model.endswith(".pt2") and torch.__version__.partition("+")[0] != MADE["made"]["packages"]["torch"]:
        pytest.skip("torch promises to read a .pt2 of its own release")
    trusted = ["--trust-code"] if model.endswith(".pt2") else []
    assert_answers(run(*make.PREDICT, old("exported") / model, DATA / "images", *trusted), "predicted")


def test_an_exported_model_is_loaded(old: Any, tmp_path: Path) -> None:
    folder = old("exported")
    model = attngraft.load(folder)
    weights = load_file(folder / "model.safetensors") | load_file(folder / "grafts" / "grafts.safetensors")
    assert_equal_tensors(model.state_dict(), weights)
    attngraft.save_grafts(model, tmp_path / "again.safetensors")
    assert_equal_files(tmp_path / "again.safetensors", folder / "grafts" / "grafts.safetensors")
    attngraft.ungraft(model)
    assert_equal_tensors(model.state_dict(), load_file(folder / "model.safetensors"))


def test_a_run_is_exported_as_it_was(old: Any, run: Run, tmp_path: Path) -> None:
    run("export", old("run"), "--out", tmp_path / "new", "--to", "hf")
    before, now = (read_json(folder / "attngraft.json") for folder in (old("exported"), tmp_path / "new"))
    assert before.keys() == now.keys()
    for name in before.keys() - {"checks", "packages", "programs", "version"}:
        assert now[name] == before[name], name
    for name in ("model.safetensors", "grafts/grafts.safetensors"):
        assert_equal_files(tmp_path / "new" / name, tmp_path / "exported" / name)
    assert read_json(tmp_path / "new" / "config.json") == read_json(tmp_path / "exported" / "config.json")


def test_a_run_starts_from_another_and_learns_from_an_exported_model(old: Any, run: Run, tmp_path: Path) -> None:
    teacher = f"distill.teacher.weights={old('exported')}"
    run(*make.START, "--weights", old("run"), "--set", teacher, "--out", tmp_path / "next")
    for name in ("start", "teacher"):
        found = read_json(tmp_path / "next" / f"{name}.json")
        assert_same({**found, "from": None, "file": None}, {**MADE[name], "from": None, "file": None})


@pytest.mark.slow
def test_an_interrupted_run_ends_where_an_undisturbed_one_ended(old: Any, run: Run) -> None:
    whole, stopped = (old("interrupted") / name for name in ("whole", "stopped"))
    assert len(rows(stopped)) == 1
    run(*make.INTERRUPTED, "--out", stopped)
    assert_same_outcome(stopped, whole)


@pytest.mark.slow
def test_a_finished_study_is_reported_on(old: Any, run: Run) -> None:
    """Nothing is trained, measured or evaluated again; all numbers are those of then."""
    folder = old("study")
    before, kept = read_json(folder / "results.json"), contents(folder, *LASTING)
    tables = {name: (folder / name).read_text(encoding="utf-8") for name in ("results.csv", "suites.csv")}
    told = json.loads(run(*make.STUDY, "--out", folder, "--json"))
    assert told == read_json(folder / "results.json")
    assert_same_results(told, before)
    assert contents(folder, *LASTING) == kept
    for name, table in tables.items():
        assert_same_table((folder / name).read_text(encoding="utf-8"), table)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert before["title"] in page
    for name in make.ANALYSES:
        assert read_json(folder / "analysis" / f"{name}.json")["title"] in page


@pytest.mark.slow
def test_an_interrupted_study_is_completed(old: Any, run: Run) -> None:
    """By its own file, from where it has been moved to."""
    folder, whole = old("unfinished"), old("study")
    stopped = folder / "runs" / "cb_s" / "seed0"
    assert len(rows(stopped)) == 1
    give_costs(folder, whole)
    run("compare", "--study", folder / "study.yaml")
    assert_same_outcome(stopped, whole / "runs" / "cb_s" / "seed0")
    assert [len(variant["runs"]) for variant in read_json(folder / "results.json")["variants"]] == [1, 1]


@pytest.mark.slow
def test_what_was_analyzed_is_found_again(old: Any, run: Run) -> None:
    folder = old("study")
    (folder / "results.json").unlink()  # so that there is no report to renew
    before = {name: read_json(folder / "analysis" / f"{name}.json") for name in make.ANALYSES}
    told = json.loads(run("analyze", *make.ANALYSES, "--study", folder, "--limit", 40, "--json"))
    assert [finding["name"] for finding in told] == make.ANALYSES
    for finding in told:
        then = before[finding["name"]]
        for part in ("numbers", "table", "subjects", "baseline"):
            assert_same(without_new_columns(finding[part], then[part]), then[part])


def without_new_columns(now: Any, then: Any) -> Any:
    """Return a table with the columns, and their entries, that it had; anything else as it is."""
    if not isinstance(now, Mapping) or "rows" not in now or now["columns"] == then["columns"]:
        return now
    places = [
        next(
            place
            for place, column in enumerate(now["columns"])
            if column == old or (isinstance(old, dict) and old.items() <= column.items())
        )
        for old in then["columns"]
    ]
    return {**now, "columns": then["columns"], "rows": [[row[place] for place in places] for row in now["rows"]]}


@pytest.mark.slow
def test_halving_goes_on(old: Any, run: Run) -> None:
    """What it stopped stays so, until it is turned off."""
    folder = old("halving")
    assert read_json(folder / "results.json")["halving"]["stopped"] == {"cb": 1, "cb_s": 1}
    plan = json.loads(run(*make.HALVING, "--out", folder, "--dry-run", "--json"))
    assert [each["epochs_done"] for each in plan["runs"]] == [2, 2, 1, 1]
    give_costs(folder, folder, {"cb": "vertical", "cb_s": "vertical"})
    told = json.loads(run(*make.HALVING, "--halving", "off", "--out", folder, "--json"))
    assert told["halving"]["stopped"] == {}
    assert_same_outcome(folder / "runs" / "cb_s" / "seed0", old("study") / "runs" / "cb_s" / "seed0")


@pytest.mark.slow
def test_a_report_alone(old: Any, run: Run) -> None:
    """Of a study whose folder is all that there is; halving decided which runs are missing."""
    folder = old("halving")
    before, kept = read_json(folder / "results.json"), contents(folder, *LASTING)
    assert_same_results(json.loads(run("compare", "--report-only", "--out", folder, "--json")), before)
    assert contents(folder, *LASTING) == kept


@pytest.mark.parametrize("name", make.GRAFTS)
def test_a_graft_file_is_loaded(name: str, tmp_path: Path) -> None:
    make_host, spec, options = make.GRAFTS[name]
    model = filled(make_host())
    report = attngraft.load_grafts(model, DATA / f"{name}.safetensors")
    assert sorted({each.partition("(")[0].partition("@")[0] for each in spec.split(" + ")}) == sorted(
        {each.partition("(")[0].partition("@")[0] for each in report.spec.split(" + ")}
    )
    expected = torch.tensor(read_json(DATA / "grafts.json")[name])
    torch.testing.assert_close(torch.tensor(logits(model)), expected, atol=1e-5, rtol=1e-5)
    attngraft.save_grafts(model, tmp_path / "again.safetensors", **options)
    assert_equal_files(tmp_path / "again.safetensors", DATA / f"{name}.safetensors")


def test_a_folder_of_transformers_is_loaded(old: Any) -> None:
    pytest.importorskip("transformers")
    model = attngraft.from_pretrained(old("transformers"))
    expected = torch.tensor(read_json(DATA / "grafts.json")["transformers"])
    torch.testing.assert_close(torch.tensor(logits(model)), expected, atol=1e-5, rtol=1e-5)


def contents(folder: Path, *patterns: str) -> dict[str, bytes]:
    """What the files in a folder hold; locks apart."""
    found = {path for pattern in patterns or ("**/*",) for path in folder.glob(pattern)}
    kept = sorted(path for path in found if path.is_file() and path.name != ".lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}


def give_costs(folder: Path, other: Path, stand_ins: Mapping[str, str] | None = None) -> None:
    """Put the costs of another study there, so that none are measured; in `stand_ins` one variant serves for another."""
    kept = read_json(other / "cost.json")
    for name, stand_in in (stand_ins or {}).items():
        kept["costs"][name] = kept["costs"][stand_in]
    (folder / "cost.json").write_text(json.dumps(kept), encoding="utf-8")


def rows(folder: Path) -> list[dict[str, float]]:
    """The metrics of a run, epoch by epoch."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def same_machine() -> bool:
    """Whether these are the processor and the packages that made the files, and there is no accelerator."""
    made = MADE["made"]
    here = {name: metadata.version(name) for name in made["packages"]}
    alike = here == made["packages"] and processor() == made["processor"] != []
    return alike and not torch.accelerator.is_available()


#: results of the rule for verdicts, which has changed
RULE = {"p_value", "p_holm", "p_source", "verdict"}
#: text for readers, whose wording may improve
PROSE = {"notes", "why", "title", "note", "caption", "x_axis", "y_axis", "row_axis", "column_axis", "left_out"}


def assert_same(now: Any, then: Any, *, tolerance: float = 1e-5) -> None:
    """Assert equal values, to the last digit where computed on the same machine; prose may differ, and keys be added."""
    if isinstance(then, Mapping):
        assert [name for name in now if name in then] == list(then)
        for name in then.keys() - PROSE - RULE:
            assert_same(now[name], then[name], tolerance=tolerance)
    elif isinstance(then, list):
        assert len(now) == len(then)
        for new, value in zip(now, then, strict=True):
            assert_same(new, value, tolerance=tolerance)
    elif isinstance(then, float) and not same_machine():
        assert now == pytest.approx(then, rel=tolerance, abs=tolerance)
    else:
        assert now == then


def assert_same_results(now: Mapping[str, Any], then: Mapping[str, Any]) -> None:
    """Two results of a study, but for when and by what command they were put together."""
    varies = {"created", "command", "version"} | PROSE
    assert [name for name in now if name in then] == list(then)
    for name in then.keys() - varies:
        assert_same(now[name], then[name], tolerance=1e-9)


def assert_same_table(now: str, then: str) -> None:
    """Two CSV files, cell by cell; columns may be added."""
    new, rows = ([_numbers(row) for row in csv.DictReader(io.StringIO(text))] for text in (now, then))
    assert_same(new, rows, tolerance=1e-9)


def _numbers(row: Mapping[str, str]) -> dict[str, float | str]:
    return {name: number(cell) for name, cell in row.items()}


def number(cell: str) -> float | str:
    """A cell as a number, if it is one."""
    try:
        return float(cell)
    except ValueError:
        return cell


def assert_same_outcome(now: Path, then: Path) -> None:
    """Two runs with the same metrics, events and predictions; elsewhere training may drift apart a little."""
    for new, row in zip(rows(now), rows(then), strict=True):
        assert_same({**new, "seconds": 0}, {**row, "seconds": 0}, tolerance=0.05)
    with np.load(now / "predictions.npz") as new, np.load(then / "predictions.npz") as arrays:
        assert set(new.files) >= set(arrays.files)
        exact = [name for name in arrays.files if same_machine() or name in ("name", "target", "binary")]
        for name in exact:
            np.testing.assert_array_equal(new[name], arrays[name])
    assert_same(events(now), events(then), tolerance=0.05)
    assert (now / "finished.json").is_file()


def events(folder: Path) -> dict[str, list[list[float]]]:
    """Steps and values of what a run told TensorBoard; times apart, as seconds are."""
    found = EventAccumulator(str(folder / "tensorboard")).Reload()
    tags = [tag for tag in sorted(found.Tags()["scalars"] + found.Tags()["tensors"]) if "seconds" not in tag]
    assert tags
    return {tag: [[event.step, event.value] for event in found.Scalars(tag)] for tag in tags}


def assert_answers(told: str, which: str) -> None:
    """What `predict` told is what it told then."""
    now, then = make.answers(told), MADE[which]
    assert list(now) == list(then)
    for image, top in then.items():
        found = {each["label"]: each["probability"] for each in now[image]}
        assert found == pytest.approx({each["label"]: each["probability"] for each in top}, abs=1e-5)


def assert_equal_tensors(now: Mapping[str, Tensor], then: Mapping[str, Tensor]) -> None:
    """The same tensors under the same names, bit for bit."""
    assert sorted(now) == sorted(then)
    assert [name for name in then if not torch.equal(now[name], then[name])] == []


def assert_equal_files(now: Path, then: Path) -> None:
    """Two files of tensors, and what they say of themselves but for the release and the checksum, which older ones lack."""
    assert_equal_tensors(load_file(now), load_file(then))
    assert said(now) == said(then)


def said(path: Path) -> dict[str, Any]:
    """The manifest of a file of tensors."""
    with safe_open(path, framework="pt") as file:
        found = file.metadata() or {}
    found.pop("attngraft.sha256", None)
    return {**found, "attngraft": {**json.loads(found.get("attngraft", "{}")), "version": None}}
