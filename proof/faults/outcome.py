"""Comparison of the results of runs and studies, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch


def updates(run: Path) -> int:
    """Return the number of updates in the last checkpoint of a run; 0 without a checkpoint."""
    path = run / "checkpoints" / "last.pt"
    if not path.exists():
        return 0
    counters = torch.load(path, weights_only=True)["counters"]
    return int(counters["epoch"]) * STEPS + int(counters["step"])


STEPS = 11  #: updates per epoch of the runs


def differences(one: Path, other: Path) -> list[str]:
    """Return the differences of two finished runs (weights, their average, optimizer, metrics, predictions) except times."""
    found = []
    if _rows(one) != _rows(other):
        found.append("metrics.jsonl")
    if _finished(one) != _finished(other):
        found.append("finished.json")
    left, right = (torch.load(path / "checkpoints" / "last.pt", weights_only=True) for path in (one, other))
    found += [f"last.pt: {name}" for name in ("model", "ema", "optimizer") if not _same(left[name], right[name])]
    for path in sorted((one / "checkpoints").glob("best*")):
        if path.read_bytes() != (other / "checkpoints" / path.name).read_bytes():
            found.append(path.name)
    with np.load(one / "predictions.npz") as a, np.load(other / "predictions.npz") as b:
        if set(a) != set(b) or not all(np.array_equal(a[key], b[key]) for key in a):
            found.append("predictions.npz")
    found += [str(path) for path in other.rglob("*.tmp")]
    return found


def study_differences(one: Path, other: Path) -> list[str]:
    """Return the differences of two studies: of their runs, and of the reported results."""
    runs = sorted(path.parent.relative_to(one) for path in (one / "runs").rglob("finished.json"))
    there = sorted(path.parent.relative_to(other) for path in (other / "runs").rglob("finished.json"))
    if runs != there:
        return [f"finished runs: {there} instead of {runs}"]
    found = [f"{run}: {each}" for run in runs for each in differences(one / run, other / run)]
    if _compared(one) != _compared(other):
        found.append("results.json")
    if not (other / "report.html").read_text().rstrip().endswith("</html>"):
        found.append("report.html is incomplete")
    return found + [str(path) for path in other.rglob("*.tmp")]


def seconds(run: Path) -> list[float]:
    """Return the duration of each epoch."""
    return [json.loads(line)["seconds"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def _rows(run: Path) -> list[dict[str, Any]]:
    return [_without_times(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]


def _finished(run: Path) -> Any:
    content = json.loads((run / "finished.json").read_text())
    for name in ("files", "sha256"):  # checksums of files with times
        content.pop(name, None)
    return _without_times(content | {"metrics": _without_times(content["metrics"])})


def _without_times(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "seconds"}


def _compared(study: Path) -> Any:
    content = json.loads((study / "results.json").read_text())
    return [
        {name: variant.get(name) for name in ("name", "spec", "last", "best", "difference")}
        | {"runs": [(run["last"], run["best"], run["curve"]) for run in variant["runs"]]}
        for variant in content["variants"]
    ]


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, Mapping):
        return isinstance(right, Mapping) and list(left) == list(right) and all(_same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)
