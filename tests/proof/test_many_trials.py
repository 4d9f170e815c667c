"""A few of the many trials, with real workers, one of them killed; and that the proof finds what is missing."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from attngraft.study import load_result
from attngraft.study.plan import resolve_runs
from proof.many_trials import EPOCHS, main, problems_of, study


@pytest.mark.product
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra ray)")
def test_the_same_on_a_ray_cluster(tmp_path: Path) -> None:
    import ray

    if ray.is_initialized():  # by other tests, with another cluster
        ray.shutdown()
    check_trials(tmp_path, executor="--ray local")
    assert not ray.is_initialized()


@pytest.mark.slow
def test_all_results_are_there_and_what_is_not_is_found(tmp_path: Path) -> None:
    check_trials(tmp_path, executor="--jobs 2")


def check_trials(place: Path, *, executor: str) -> None:
    """Six trials, one of whose workers is killed; then some are damaged, and the damage is found."""
    folder, out = place / "study", place / "found.json"
    options = ["--trials", "6", *executor.split(), "--kill", "1", "--folder", str(folder), "--out", str(out)]
    assert main(options) == 0
    found = json.loads(out.read_text())
    assert (found["trials"], found["finished"], found["problems"]) == (6, 6, [])
    assert len(found["killed"]) == 1
    assert found["executor"] == executor
    runs, result = resolve_runs(study(folder, trials=6)).runs, load_result(folder)
    assert {run.epochs_done for run in runs} == {EPOCHS}
    (runs[3].folder / "finished.json").unlink()
    (runs[5].folder / "metrics.jsonl").write_text("")
    shutil.copy(runs[0].folder / "predictions.npz", runs[2].folder / "predictions.npz")
    problems = problems_of(result, runs, [runs[2]], 2)
    assert f"{runs[3].label}: files or epochs are missing" in problems
    assert f"{runs[5].label}: files or epochs are missing" in problems
    assert "only 1 of 2 workers could be killed" in problems
    assert f"{runs[2].label}: the results differ from those of the same run trained alone" in problems
