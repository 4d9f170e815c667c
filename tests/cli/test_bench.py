"""`attngraft bench bixt` as a user runs it; its processes replaced but in the slow test."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attngraft.bench import scaling
from attngraft.bench.one_size import SizeResult, SizeTask
from attngraft.cli import main
from tests.cli.test_verbs import run

SIZES = "--sizes=196,3136,12544,50176"


def linear(job: SizeTask) -> SizeResult:
    """A microsecond and 100 bytes for each token; but the N x N maps never fit."""
    if job.layer == "vit-explicit":
        return SizeResult(outcome="out of memory")
    return SizeResult(outcome="measured", seconds=(1e-6 * job.tokens,), memory=100 * job.tokens)


@pytest.fixture(autouse=True)
def _one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever becomes of the checkout meanwhile."""
    monkeypatch.setattr("attngraft.environment._commit", lambda: None)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[SizeTask]:
    """What is measured, without processes."""
    done: list[SizeTask] = []

    def measured(job: SizeTask) -> SizeResult:
        done.append(job)
        return linear(job)

    monkeypatch.setattr(scaling, "sweep", functools.partial(scaling.sweep, run=measured))
    return done


def test_it_measures_writes_and_goes_on(
    jobs: list[SizeTask], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bixt.json"
    arguments = ["bench", "bixt", "--out", str(out), "--threads", "1", "--memory-limit", "2"]
    assert run([*arguments, SIZES]) == 0
    shown = capsys.readouterr().out
    assert "BiXT layer: time ~ N^1.00 (1.00 to 1.00), 3 sizes, bar 1 +- 0.1: pass" in shown
    assert "out of memory (2 GB)" in shown
    assert "\x1b" not in shown
    assert {path.name for path in tmp_path.iterdir()} == {
        "bixt.json", "bixt.png", "bixt.svg", "bixt-dark.png", "bixt-dark.svg"
    }  # fmt: skip
    assert len(jobs) == 4 + 4 + 1
    assert all(job.threads == 1 and job.memory == 2e9 and not job.backward for job in jobs)
    jobs.clear()
    assert run([*arguments, "--sizes", "196,784", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(job.layer, job.tokens) for job in jobs] == [("bixt", 784), ("vit", 784)]
    assert result == json.loads(out.read_text())
    assert [point["tokens"] for point in result["curves"][0]["points"]] == [196, 784, 3136, 12544, 50176]
    assert result["call"] == {"depth": 1, "backward": False, "cpu_time": False, "threads": 1, "repeats": 5}
    assert result["environment"]["threads"] == 1
    assert run([*arguments, "--backward"]) == 2
    assert "backward False, not True: pass another --out" in capsys.readouterr().err


def test_without_sizes_it_goes_from_196_tokens_to_a_million(jobs: list[SizeTask], tmp_path: Path) -> None:
    assert run(["bench", "bixt", "--out", str(tmp_path / "x.json")]) == 0
    bixt = [job.tokens for job in jobs if job.layer == "bixt"]
    assert (bixt[0], bixt[-1]) == (196, 1_048_576)
    assert {job.layer for job in jobs} == {"bixt", "vit", "vit-explicit"}


def test_too_few_sizes_for_an_exponent(
    jobs: list[SizeTask], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "bixt", "--out", str(tmp_path / "x.json"), "--sizes=784,3136,12544"]) == 0
    shown = capsys.readouterr().out
    assert "BiXT layer: no exponent; it needs three sizes of at least 3,136 tokens" in shown
    assert "ViT block, fused attention: no exponent" not in shown


def test_alone_and_deeper(jobs: list[SizeTask], tmp_path: Path) -> None:
    assert (
        run(["bench", "bixt", "--out", str(tmp_path / "x.json"), SIZES, "--against=none", "--depth=3", "--cpu-time"])
        == 0
    )
    assert {(job.layer, job.depth, job.cpu_time) for job in jobs} == {("bixt", 3, True)}


def test_an_exponent_beyond_its_bar_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def steep(job: SizeTask) -> SizeResult:
        return SizeResult(outcome="measured", seconds=(1e-9 * job.tokens**1.5,), memory=100 * job.tokens)

    monkeypatch.setattr(scaling, "sweep", functools.partial(scaling.sweep, run=steep))
    assert run(["bench", "bixt", "--out", str(tmp_path / "x.json"), SIZES, "--against", "none"]) == 1
    assert "time ~ N^1.50 (1.50 to 1.50), 3 sizes, bar 1 +- 0.1: FAIL" in capsys.readouterr().out


def test_interrupted_it_keeps_and_shows_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(job: SizeTask) -> SizeResult:
        if job.tokens > 196:
            raise KeyboardInterrupt
        return linear(job)

    monkeypatch.setattr(scaling, "sweep", functools.partial(scaling.sweep, run=interrupted))
    out = tmp_path / "x.json"
    assert run(["bench", "bixt", "--out", str(out), SIZES]) == 130
    shown = capsys.readouterr()
    assert "rerun the same command to resume" in shown.err
    assert "196 µs" in shown.out
    assert len(scaling.read_scaling(out).curves[0].points) == 1
    assert out.with_suffix(".png").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "196;784"], "positive integers separated by commas"),
        (["--sizes", "0"], "positive integers"),
        (["--against", "mamba"], "layers must be one or more of bixt, vit, vit-explicit, not mamba"),
        (["--repeats", "0"], "--repeats"),
        (["--out", "bixt.png"], "--out must end in .json"),
    ],
)
def test_errors(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "bixt", "--out", str(tmp_path / "x.json"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.json"
    out.write_text("[]")
    assert run(["bench", "bixt", "--out", str(out)]) == 2
    assert "x.json" in capsys.readouterr().err
    assert out.read_text() == "[]"


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "bixt", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "attngraft bench bixt --backward --threads 2" in shown
    with pytest.raises(SystemExit):
        main(["bench"])
    assert "bixt" in capsys.readouterr().out


@pytest.mark.product
def test_interrupted_for_real(tmp_path: Path) -> None:
    """By the signal that a terminal sends, while a process measures."""
    out = tmp_path / "x.json"
    arguments = ["--sizes=196,12544", "--against=none", "--repeats=1000000", "--time-limit=5", "--threads=1"]
    command = [sys.executable, "-m", "attngraft", "bench", "bixt", "--out", str(out), *arguments]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not out.exists():
        assert running.poll() is None
        time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert f"measurements are in {out}; rerun the same command to resume" in said
    assert [point.tokens for point in scaling.read_scaling(out).curves[0].points] == [196]
    assert out.with_suffix(".png").is_file()


@pytest.mark.slow
def test_for_real(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In processes of their own. On a busy machine an exponent may miss its bar."""
    out = tmp_path / "x.json"
    arguments = ["--sizes=3136,12544,25088", "--against=none", "--repeats=1", "--time-limit=60", "--memory-limit=0.5"]
    assert run(["bench", "bixt", "--out", str(out), "--threads", "1", *arguments]) in (0, 1)
    found = scaling.read_scaling(out)
    [bixt] = found.curves
    assert [point.tokens for point in bixt.points] == [3136, 12544, 25088]
    assert bixt.time is not None
    assert bixt.memory is not None and bixt.memory.value == pytest.approx(1.0, abs=0.15)
    assert all(point.seconds > 0 and point.memory for point in bixt.points)
    assert "BiXT layer: memory ~ N^" in capsys.readouterr().out
