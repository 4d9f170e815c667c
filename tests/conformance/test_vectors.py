"""All vectors on disk, with every backend, and the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance import check, run

SHARED = Path(os.environ.get("ATTNGRAFT_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))
VECTORS = sorted(path for family in check.FAMILIES for path in (SHARED / "conformance/vectors" / family).glob("*.json"))


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


#: whole models for images of 224 pixels, for which the reference takes 15 seconds
LARGE = ("elsa/elsa_swin_tiny_224", "elsa/volo_d1_224")
RUNS = [
    pytest.param(
        path,
        backend,
        id=f"{named(path)}-{backend}",
        marks=[pytest.mark.slow] * (backend != "auto" and named(path) in LARGE),
    )
    for path in VECTORS
    for backend in ("auto", "reference")
]


@pytest.mark.parametrize(("path", "backend"), RUNS)
def test_vector(path: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGRAFT_BACKEND", backend)
    assert check.problems(path) == []


def test_all_families_are_on_disk(shared: Path) -> None:
    assert {path.parent.name for path in VECTORS} == set(check.FAMILIES)


def a_vector(folder: Path, shared: Path, **changes: object) -> Path:
    """Write a changed copy of a vector."""
    raw = json.loads((shared / "conformance/vectors/cb/cb_s.json").read_text())
    path = folder / "changed.json"
    path.write_text(json.dumps({**raw, **changes}))
    return path


def test_an_unknown_kind_fails(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_vector(tmp_path, shared, config={"kind": "nonsense"})
    assert run.main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "0 passed, 1 failed"
    assert "unknown kind 'nonsense'" in lines[0]


def test_a_wrong_value_fails(shared: Path, tmp_path: Path) -> None:
    raw = json.loads((shared / "conformance/vectors/cb/cb_s.json").read_text())
    raw["expected"]["grad_x"]["values"][7] += 1e-3
    (problem,) = [text for text in check.problems(a_vector(tmp_path, shared, **raw)) if "float32" in text]
    assert "grad_x" in problem
    assert "in 1 of 327 values" in problem


def test_a_missing_or_surplus_weight_fails(shared: Path, tmp_path: Path) -> None:
    (problem,) = check.problems(a_vector(tmp_path, shared, state_shapes={}))
    assert "fills nothing into our scale" in problem
    (problem,) = check.problems(a_vector(tmp_path, shared, state_shapes={"cb.scale": [48], "cb.shift": [48]}))
    assert "shift" in problem


@pytest.mark.slow
def test_the_command(shared: Path) -> None:
    command = [sys.executable, run.__file__, str(shared / "conformance/vectors/cb/cb_mean.json")]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    assert result.stdout == "1 passed, 0 failed\n"
