"""Results of benchmarks, and the check of outputs before timing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from attngraft.bench.command import finish, options, render
from attngraft.bench.result import (
    BenchResult,
    WrongOutputsError,
    check_outputs,
    current_setting,
    measurement,
    read_benchmark,
    write_result,
)
from attngraft.errors import AttngraftError, ConfigError
from attngraft.timing.paired import Duration, PairedRatio


def a_result(*, high: float = 1.05, low: float = 1.01) -> BenchResult:
    ratio = PairedRatio(ratio=1.02, low=low, high=high, baseline_seconds=0.5, candidate_seconds=0.51, pairs=30)
    setting = current_setting()
    return BenchResult(
        title="Training step",
        command=setting.command,
        environment=setting.environment,
        load=setting.load,
        settings={"batch": 8},
        measurements=(
            measurement("cb", ratio, bar=1.03),
            measurement("help", Duration(seconds=0.2, low=0.1, high=0.3, samples=5), bar=None),
        ),
    )


def test_what_is_written_is_read_back(tmp_path: Path):
    result = a_result()
    write_result(result, tmp_path / "deep" / "result.json")
    assert read_benchmark(tmp_path / "deep" / "result.json", BenchResult) == result
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["result.json"]


def test_the_result_contains_the_environment():
    result = a_result()
    assert result.environment["packages"]["torch"]
    assert result.environment["threads"] >= 1
    assert "commit" in result.environment


@pytest.mark.parametrize(("low", "passed"), [(1.01, True), (1.031, False)])
def test_the_exit_status_follows_the_bars(low: float, passed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    result = a_result(low=low, high=1.2)
    assert result.passed is passed
    assert finish(result, out=tmp_path / "out.json", as_json=False) == (0 if passed else 1)
    shown = capsys.readouterr().out
    assert "1.020x" in shown
    assert ("pass" in shown) is passed
    assert ("FAIL" in shown) is not passed
    assert (tmp_path / "out.json").is_file()


def test_json_on_the_terminal_is_json(capsys: pytest.CaptureFixture[str]):
    finish(a_result(), out=None, as_json=True)
    assert json.loads(capsys.readouterr().out)["measurements"][0]["name"] == "cb"


def test_damaged_and_newer_files_are_refused(tmp_path: Path):
    path = tmp_path / "result.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"result\.json"):
        read_benchmark(path, BenchResult)
    write_result(a_result(), path)
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(ConfigError, match="format 2"):
        read_benchmark(path, BenchResult)


def test_the_table_names_machine_and_bar():
    table = render(a_result())
    assert table.row_count == 2
    assert "torch" in str(table.caption)


def test_common_options():
    arguments = options("what", pairs=30).parse_args(["--pairs", "3", "--out", "x.json"])
    assert (arguments.pairs, arguments.out, arguments.json) == (3, Path("x.json"), False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench/jobs.py", "--pairs", "3"], "python bench/jobs.py --pairs 3"),
        (["/home/me/.venv/bin/attngraft", "bench", "bixt"], "attngraft bench bixt"),
    ],
)
def test_commands_do_not_depend_on_the_machine(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert current_setting().command == said


def test_equal_outputs_pass_and_wrong_ones_are_named():
    reference = {"logits": torch.ones(2, 3), "rest": [torch.zeros(1)]}
    check_outputs({"logits": torch.ones(2, 3) + 1e-7, "rest": [torch.zeros(1)]}, reference, what="cb")
    with pytest.raises(WrongOutputsError, match="cb: not timed") as caught:
        check_outputs({"logits": torch.ones(2, 3) + 1e-2, "rest": [torch.zeros(1)]}, reference, what="cb")
    assert isinstance(caught.value, AttngraftError)


def test_zero_tolerance_means_bit_for_bit():
    with pytest.raises(WrongOutputsError):
        check_outputs(torch.tensor([1.0 + 1e-7]), torch.tensor([1.0]), what="patched", rtol=0, atol=0)


def test_shape_and_type_matter():
    for wrong in (torch.ones(3), torch.ones(2, dtype=torch.float64)):
        with pytest.raises(WrongOutputsError):
            check_outputs(wrong, torch.ones(2), what="x")
