"""`attngraft eval --suite` and `compare --suite` as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attngraft.cli import main
from attngraft.evaluation.suites.cache import read_columns
from attngraft.study import load_result, runner
from tests.evaluation.suites.making import NAMES, run_with_images
from tests.export.runs import VIT, make_run
from tests.tasks.images.datasets import make_folder


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def test_a_table_with_intervals_and_where_things_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_with_images(tmp_path / "run", "cb_s")
    assert call("eval", run, "--suite", "noise,fgsm", "--suite", "calibration") == 0
    shown = capsys.readouterr()
    assert "Gaussian noise, 5/255" in shown.out and "FGSM, 8/255" in shown.out
    assert "95% interval" in shown.out and "ECE" in shown.out
    assert f"Predictions and results: {run / 'evaluation'}" in shown.out
    assert "\x1b" not in shown.out + shown.err
    assert call("eval", run, "--suite", "noise", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["suite"] == "noise"
    assert len(found["groups"][0]["metrics"]["top1"]["values"]) == 5
    assert (
        (run / "evaluation" / "last" / "noise" / "results.csv").read_text().startswith("suite,condition,label,metric")
    )


def test_real_images(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = shared / "data" / "flowers5"
    if not data.is_dir():
        pytest.skip(f"{data} is not at hand")
    task = {"name": "classification", "data": {"source": str(data)}}
    classes = sorted(path.name for path in (data / "val").iterdir() if path.is_dir())
    run = make_run(
        tmp_path / "run", "cb_s", host=VIT, classes=classes, task=task, train={"batch_size": 32, "threads": 1}
    )
    assert call("eval", run, "--suite", "robustness,clean", "--data", data / "val", "--limit", 20) == 0
    shown = capsys.readouterr().out
    assert "Note: 20 of 150 examples, evenly spaced (--limit)." in shown
    (folder,) = (run / "evaluation" / "last").glob("clean--flowers5-val-*-limit20")
    kept = read_columns(folder / "clean.parquet")
    assert sorted({name.split("/")[0] for name in kept["name"]}) == classes
    assert [classes[target] for target in kept["target"]] == [name.split("/")[0] for name in kept["name"]]


@pytest.mark.parametrize(
    ("source", "classes"), [("cifar10/cifar10_train10k_test2k.npz", 10), ("tiny_imagenet20", 20), ("flowers5", 5)]
)
@pytest.mark.slow
def test_attacks_and_noise_on_real_images(shared: Path, tmp_path: Path, source: str, classes: int) -> None:
    """Of any kind of source: attacks raise the loss the more, the farther they may go, and PGD more than FGSM."""
    data = shared / "data" / source
    if not data.exists():
        pytest.skip(f"{data} is not at hand")
    task = {"name": "classification", "data": {"source": str(data)}}
    names = [str(place) for place in range(classes)]  # by number, whatever the data call them
    run = make_run(tmp_path / "run", host=VIT, classes=names, task=task, train={"batch_size": 32, "threads": 1})
    assert call("eval", run, "--suite", "clean,fgsm,pgd,noise", "--limit", 40) == 0
    folder = run / "evaluation" / "last"
    found = {
        suite: json.loads((folder / f"{suite}--limit40" / "results.json").read_text())["groups"]
        for suite in ("clean", "fgsm", "pgd", "noise")
    }
    losses = {name: [group["metrics"]["loss"]["mean"] for group in groups] for name, groups in found.items()}
    assert losses["fgsm"] == sorted(losses["fgsm"])
    assert losses["clean"][0] < losses["fgsm"][0]
    assert losses["pgd"][-1] > losses["fgsm"][-1]
    noise = found["noise"][1]["metrics"]["loss"]
    assert len(set(noise["values"])) == 5
    assert noise["interval"]["low"] < noise["mean"] < noise["interval"]["high"]


@pytest.mark.slow
def test_ctrl_c_is_130_and_keeps_what_is_done(tmp_path: Path) -> None:
    run = run_with_images(tmp_path / "run", train={"batch_size": 1, "threads": 1})
    command = [sys.executable, "-m", "attngraft", "eval", str(run), "--suite", "corruptions,pgd"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    start = time.monotonic()
    while len(list(run.rglob("*.parquet"))) < 3:
        assert process.poll() is None and time.monotonic() - start < 120
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "attngraft: interrupted: Corruptions:" in told and "rerun the same command to resume" in told
    assert "Traceback" not in told
    assert 3 <= len(list(run.rglob("*.parquet"))) < 125
    assert not list(run.rglob("*.tmp"))


def test_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_with_images(tmp_path / "run")
    for arguments, code, message in (
        (["--suite", "noyse"], 2, "did you mean noise"),
        (["--suite", "a"], 2, "of ImageNet's 1000"),
        (["--limit", 3], 2, "--limit requires --suite"),
        (["--suite", "noise", "--weights", "ema"], 2, "has no moving average"),
        (["--suite", "noise", "--data", tmp_path / "nowhere"], 2, "nowhere"),
        (["--suite", "noise="], 2, "the folder after = is missing"),
    ):
        assert call("eval", run, *arguments) == code
        shown = capsys.readouterr()
        assert message in " ".join(shown.err.split())
        assert "Traceback" not in shown.err


def test_one_that_fails_leaves_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_with_images(tmp_path / "run")
    broken = make_folder(tmp_path / "broken", dict.fromkeys(NAMES, 1))
    (broken / "dog" / "0.png").write_bytes(b"no image")
    assert call("eval", run, "--suite", f"occlusion={broken}", "--suite", "clean") == 1
    shown = capsys.readouterr()
    assert "Clean images" in shown.out and "Hidden center" not in shown.out
    assert f"Predictions and results: {run / 'evaluation'}" in shown.out
    assert f"attngraft: suite occlusion={broken} failed: {broken}/dog/0.png: " in shown.err
    assert "Traceback" not in shown.err
    assert call("eval", run, "--suite", f"occlusion={broken}", "--suite", "clean", "--json") == 1
    assert [each["suite"] for each in json.loads(capsys.readouterr().out)] == ["clean"]
    assert call("eval", run, "--suite", f"occlusion={broken}") == 2
    assert capsys.readouterr().out == ""


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("list", "suites", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {"clean", "real", "v2", "a", "r", "sketch", "fgsm", "pgd", "corruptions", "throughput"} <= rows.keys()
    assert "https://github.com/hendrycks/natural-adv-examples" in rows["a"]["images"]


@pytest.mark.slow
def test_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(runner, "_costs", lambda *_: {})
    make_folder(tmp_path / "data", {"train": {"a": 8, "b": 8}, "val": {"a": 4, "b": 4}}, size=(16, 16))
    host = ["--host", VIT["name"], *(f"--host-arg={name}={value}" for name, value in VIT["args"].items())]
    rest = ["--graft", "cb", "--data", tmp_path / "data", "--seeds", 2, "--epochs", 1, "--set", "train.batch_size=8"]
    assert call("compare", *host, *rest, "--suite", "fgsm", "--suite", "calibration", "--out", tmp_path / "study") == 0
    shown = capsys.readouterr().out
    assert "FGSM: top-1 accuracy (%) of 8 examples" in shown and "expected calibration error" in shown
    assert [suite.name for suite in load_result(tmp_path / "study").suites] == ["fgsm", "calibration"]
    assert '<section id="suites">' in (tmp_path / "study" / "report.html").read_text()
    assert call("compare", "--report-only", "--out", tmp_path / "study") == 0
    assert "FGSM: top-1" in capsys.readouterr().out
