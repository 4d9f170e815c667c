"""The committed proof holds for the code as it is, and its command goes on where it stopped."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngraft.results.coverage import measured_coverage
from proof.coverage import Count, disjoint, paired_anew, simulated
from proof.null_study import SEEDS, main, shipped
from proof.outcomes import Outcome, corrected
from proof.runs import seeds, unpacked
from proof.simulation import SETTINGS

COMMITTED = Path(__file__).resolve().parents[2] / "benchmarks" / "null_study.json"


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    return json.loads(COMMITTED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def digits(committed: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The scores of the 40 runs."""
    kept = committed["digits"]
    baseline, variant = (unpacked(kept["scores"][side], images=kept["images"]) for side in ("baseline", "variant"))
    return baseline, variant


def count_of(row: dict[str, Any]) -> Count:
    return Count(**{field.name: row[field.name] for field in dataclasses.fields(Count)})


def test_it_passed(committed: dict[str, Any]) -> None:
    tests = [Outcome(**{k: v for k, v in row.items() if k != "passed"}) for row in committed["tests"]]
    assert committed["passed"]
    assert corrected(tests) == tests
    assert all(test.passed for test in tests)
    names = " ".join(test.name for test in tests)
    assert all(
        f"{what}, {each} seeds: {kind}" in names for what in ("simulated", "digits") for each in SEEDS for kind in "bt"
    )
    assert "McNemar" in names


def test_forty_runs_each_with_its_own_seed(digits: tuple[np.ndarray, np.ndarray]) -> None:
    runs = np.concatenate(digits)
    assert runs.shape == (40, 359)
    assert len(np.unique(runs, axis=0)) == 40
    assert len(set(seeds(20))) == 40
    assert 0.8 < runs.mean() < 0.97


def test_digits_again_with_the_code_as_it_is(committed: dict[str, Any], digits: tuple[np.ndarray, np.ndarray]) -> None:
    """The 40 runs' scores go through today's intervals and verdicts."""
    rows = {row["seeds"]: row for row in committed["digits"]["disjoint"]}
    assert [rows[each]["studies"] for each in SEEDS] == [6, 4, 2]
    for each in SEEDS:
        assert disjoint(*digits, seeds=each) == count_of(rows[each])


def test_paired_anew_coverage_is_due(digits: tuple[np.ndarray, np.ndarray]) -> None:
    """A mean over studies that share runs: no test, but far from too narrow."""
    count = paired_anew(*digits, seeds=3, pairings=20)
    shares = (count.interval / count.with_interval, count.bootstrap / count.studies, count.t / count.with_t)
    assert min(shares) > 0.9


def test_what_is_shipped_is_what_was_measured(committed: dict[str, Any]) -> None:
    assert measured_coverage() == shipped(committed)
    assert [row.seeds for row in measured_coverage().measured] == list(SEEDS)
    assert min(row.studies for row in measured_coverage().measured) >= 10_000


def test_the_guide_quotes_what_was_measured(committed: dict[str, Any]) -> None:
    guide = (COMMITTED.parents[1] / "docs" / "guide" / "statistics.md").read_text(encoding="utf-8")
    for shares in measured_coverage().measured:
        kinds = [row for row in committed["simulated"]["kinds"] if row["seeds"] == shares.seeds]
        equal = [count_of(row) for row in kinds if row["accuracy"][0] == row["accuracy"][1]]
        called = sum(count.verdicts for count in equal) / sum(count.studies for count in equal)
        cells = [_down(share) for share in (shares.interval, shares.bootstrap, shares.t)]
        assert f"| {shares.seeds} | {' | '.join(cells)} | {called:.1%} |" in guide


def _down(share: float) -> str:
    return f"{int(share * 1000) / 10:.1f}%"


@pytest.mark.product
def test_the_command_measures_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], digits: tuple[np.ndarray, np.ndarray]
) -> None:
    """Its two runs score nearly as the committed ones: their bits depend on the machine's kernels, accuracy hardly does."""
    out, coverage = tmp_path / "out.json", tmp_path / "coverage.json"
    words = ["--work", str(tmp_path / "work"), "--studies", "10", "--runs", "2", "--jobs", "1"]
    assert main([*words, "--out", str(out), "--coverage", str(coverage)]) == 0
    first = json.loads(out.read_text())
    assert json.loads(coverage.read_text())["measured"][0]["studies"] == 50
    assert first["digits"]["disjoint"] == []  # which takes three runs of each side
    for side, kept in zip(("baseline", "variant"), digits, strict=True):
        assert abs(first["digits"]["top1"][side][0] - kept[0].mean()) < 0.06
    row = first["simulated"]["kinds"][0]
    assert count_of(row) == simulated(SETTINGS[0], seeds=3, studies=10)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.json")}
    assert main([*words, "--out", str(out)]) == 0
    second = json.loads(out.read_text())
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.json")} == files
    assert second["tests"] == first["tests"]
    assert second["command"].startswith("python -m proof.null_study --work ")
    capsys.readouterr()
