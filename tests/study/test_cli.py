"""`attngraft compare` on the command line: options, output, exit codes. The trainer is fake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from attngraft.cli import main
from attngraft.study import load_result, read_study_file, runner

from .fakes import FakeTrainer, tools

HOST = [
    "--host",
    "vit_tiny_patch16_224",
    "--host-arg",
    "img_size=16",
    "--host-arg",
    "patch_size=8",
    "--host-arg",
    "depth=2",
]
STUDY = ["compare", *HOST, "--graft", "cb_s", "--data", "digits", "--seeds", "2", "--epochs", "3"]


def call(*arguments: str) -> int:
    """The exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> FakeTrainer:
    """A fake that the verb uses."""
    fake = FakeTrainer({"cb_s": 0.2})
    monkeypatch.setattr(runner, "Tools", lambda: tools(fake))
    return fake


def test_a_study_from_options(tmp_path: Path, trainer: FakeTrainer, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*STUDY, "--out", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "cb_s" in shown
    assert f"Report: {tmp_path / 'report.html'}" in shown
    assert "What to do next" in shown
    assert f"  attngraft export {tmp_path / 'runs/cb_s/seed'}" in shown
    assert "\x1b" not in shown
    assert trainer.calls == [("none", 0), ("cb_s", 0), ("none", 1), ("cb_s", 1)]
    assert read_study_file(tmp_path / "study.yaml")["host"]["args"] == {"img_size": 16, "patch_size": 8, "depth": 2}


def test_json_and_report_only(tmp_path: Path, trainer: FakeTrainer, capsys: pytest.CaptureFixture[str]) -> None:
    call(*STUDY, "--out", str(tmp_path))
    capsys.readouterr()
    before = list(trainer.calls)
    assert call("compare", "--report-only", "--out", str(tmp_path), "--title", "New title", "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["title"] == "New title"
    assert content["command"].split()[0] == "attngraft"
    assert load_result(tmp_path).title == "New title"
    assert trainer.calls == before


def test_a_study_that_was_moved_goes_on_where_it_is(tmp_path: Path, trainer: FakeTrainer) -> None:
    assert call(*STUDY, "--out", str(tmp_path / "here")) == 0
    (tmp_path / "here").rename(tmp_path / "there")
    trained = len(trainer.calls)
    assert call("compare", "--study", str(tmp_path / "there" / "study.yaml")) == 0
    assert call("compare", "--report-only", "--study", str(tmp_path / "there" / "study.yaml")) == 0
    assert len(trainer.calls) == trained
    assert not (tmp_path / "here").exists()


def test_options_replace_what_stands_in_the_file(tmp_path: Path, trainer: FakeTrainer) -> None:
    call(*STUDY, "--out", str(tmp_path / "first"), "--set", "optimizer.lr=1e-4")
    file = str(tmp_path / "first" / "study.yaml")
    arguments = ["--study", file, "--host-arg", "depth=1", "--seeds", "4,", "--set", "train.batch_size=9"]
    assert call("compare", *arguments, "--out", str(tmp_path / "second")) == 0
    plain = read_study_file(tmp_path / "second" / "study.yaml")
    assert plain["host"]["args"] == {"img_size": 16, "patch_size": 8, "depth": 1}
    assert plain["set"] == ["optimizer.lr=1e-4", "train.batch_size=9"]
    assert plain["seeds"] == [4]


SMALL = "{img_size: 16, patch_size: 8, depth: 1}"


def test_other_hosts_from_options(tmp_path: Path, trainer: FakeTrainer, capsys: pytest.CaptureFixture[str]) -> None:
    against = ["--against", f"deit_tiny_patch16_224: {SMALL}"]
    assert call(*STUDY, *against, "--out", str(tmp_path)) == 0
    assert "deit_tiny_patch16_224" in "".join(capsys.readouterr().out.split())
    kept = read_study_file(tmp_path / "study.yaml")["grafts"]
    assert [entry["name"] for entry in kept] == ["baseline", "cb_s", "deit_tiny_patch16_224"]
    file = ["compare", "--study", str(tmp_path / "study.yaml"), "--dry-run", "--json"]
    assert variants(capsys, *file) == ["baseline", "cb_s", "deit_tiny_patch16_224"]
    assert variants(capsys, *file, "--graft", "cb") == ["baseline", "cb", "deit_tiny_patch16_224"]
    named = f"{{name: tiny, host: {{name: deit_tiny_patch16_224, args: {SMALL}}}, spec: cb}}"
    assert variants(capsys, *file, "--against", named) == ["baseline", "cb_s", "tiny"]
    alone = [part for part in STUDY if part not in ("--graft", "cb_s")]
    assert variants(capsys, *alone, *against, "--out", str(tmp_path / "b"), "--dry-run", "--json") == [
        "baseline",
        "deit_tiny_patch16_224",
    ]


def variants(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Those of the plan that a command prints as JSON."""
    capsys.readouterr()
    assert call(*arguments) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert {run["host"] for run in runs if run["variant"] == "baseline"} == {"vit_tiny_patch16_224"}
    return list(dict.fromkeys(run["variant"] for run in runs))


def test_a_dry_run_trains_nothing(tmp_path: Path, trainer: FakeTrainer, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*STUDY, "--out", str(tmp_path), "--dry-run") == 0
    assert "4 runs of 3 epochs" in capsys.readouterr().out
    assert call(*STUDY, "--out", str(tmp_path), "--dry-run", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert [run["state"] for run in plan["runs"]] == ["new"] * 4
    assert plan["seconds"] == 16
    assert trainer.calls == []
    assert list(tmp_path.iterdir()) == []


def test_halving_is_part_of_the_study(tmp_path: Path, trainer: FakeTrainer) -> None:
    grafts = [part for spec in ("cb", "horizontal", "vertical") for part in ("--graft", spec)]
    study = [*STUDY[:-1], "9", *grafts, "--out", str(tmp_path)]
    assert call(*study, "--halving", "3,1") == 0
    kept = read_study_file(tmp_path / "study.yaml")
    assert kept["halving"] == "3,1"
    result = load_result(tmp_path)
    assert result.halving is not None
    assert len(result.halving.stopped) == 3
    assert call(*study, "--halving", "off") == 0
    assert "halving" not in read_study_file(tmp_path / "study.yaml")
    assert all(len(variant.runs) == 2 for variant in load_result(tmp_path).variants)


def test_missing_runs_are_exit_code_1(tmp_path: Path, trainer: FakeTrainer, capsys: pytest.CaptureFixture[str]) -> None:
    trainer.fails = {("cb_s", 1)}
    assert call(*STUDY, "--out", str(tmp_path)) == 1
    captured = capsys.readouterr()
    assert "Note: cb_s, seed 1 failed" in " ".join(captured.out.split())
    assert "missing" in captured.err


def test_an_interruption_is_exit_code_130(
    tmp_path: Path, trainer: FakeTrainer, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer.stops = ("cb_s", 0)
    assert call(*STUDY, "--out", str(tmp_path)) == 130
    assert "--report-only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--graft"),
        (["--graft", "cb_s"], "--out"),
        (["--graft", "cb_z", "--out", "x"], "cb_z"),
        (["--graft", "cb_s", "--out", "x", "--seeds", "no"], "seeds"),
        (["--graft", "cb_s", "--out", "x", "--host-arg", "depth"], "--host-arg"),
        (["--report-only", "--out", "nowhere"], "study.yaml"),
        (["--study", "nowhere.yaml"], "nowhere.yaml"),
        (["--graft", "cb_s", "--out", "x", "--jobs", "0"], "--jobs must be at least 1"),
        (["--graft", "cb_s", "--out", "x", "--jobs", "2", "--ray", "local"], "mutually exclusive"),
        (["--graft", "cb_s", "--out", "x", "--gpus-per-run", "1"], "require --ray"),
        (
            ["--graft", "cb_s", "--out", "x", "--jobs", "many"],
            "--jobs many: expected a number of concurrent runs, or auto",
        ),
        (["--graft", "cb_s", "--out", "x", "--retries", "-1"], "--retries must be 0 or more"),
        (["--against", "3", "--out", "x"], "--against 3: write HOST"),
        ([*HOST, "--against", "resnet10", "--data", "digits", "--out", "x"], "the variant resnet10: there is no model"),
        (["--graft", "cb_s", "--out", "x", "--halving", "1"], "halving: expected a factor of at least 2"),
    ],
)
def test_usage_errors_are_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("compare", *arguments) == 2
    assert message in capsys.readouterr().err


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from attngraft.cli import main\n"
        "try: main(['compare', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "--time-budget" in done.stdout
