"""`attngraft compare --jobs` and `--ray` as a person calls them: real training by several processes, to the report."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attngraft.cli.compare import _executor
from attngraft.errors import UsageError
from attngraft.study import load_result
from attngraft.study.cost import save_costs
from attngraft.study.executors import Automatic, Processes, Ray
from attngraft.study.runner import write_study
from tests.study.fakes import cost

from .test_bitwise import tiny

with_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra ray)")


def carried_out_by(out: Path, *how: str) -> set[int]:
    """The processes that were at work on runs of a study, which must come to its report; none of them is the command.

    What the variants cost is there already: measuring it takes longest, and no executor has a part in it.
    """
    config = tiny(out, epochs=3)
    out.mkdir()
    write_study(config)
    save_costs(out, config.recipe_of(config.baseline, 0), {variant.spec: cost(1.0) for variant in config.variants})
    command = [sys.executable, "-m", "attngraft", "compare", "--study", str(out / "study.yaml"), *how]
    found: set[int] = set()
    said = out.with_name("said")
    with said.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as program:
        while program.poll() is None:
            for lock in (out / "runs").rglob(".lock"):
                try:
                    found.add(json.loads(lock.read_text(encoding="utf-8"))["process"])
                except (OSError, ValueError):  # being written, or given back
                    continue
            time.sleep(0.02)
    text = said.read_text(encoding="utf-8")
    assert program.returncode == 0, text
    assert f"Report: {out / 'report.html'}" in text
    assert (out / "report.html").read_text(encoding="utf-8").rstrip().endswith("</html>")
    result = load_result(out)
    assert [(variant.name, len(variant.runs)) for variant in result.variants] == [("baseline", 2), ("cb", 2)]
    assert result.variants[1].difference is not None
    assert program.pid not in found
    return found


@pytest.mark.product
def test_jobs(tmp_path: Path) -> None:
    assert len(carried_out_by(tmp_path / "study", "--jobs", "2")) == 2


@with_ray
@pytest.mark.product
def test_ray(tmp_path: Path) -> None:
    assert carried_out_by(tmp_path / "study", "--ray", "local", "--cpus-per-run", "1", "--retries", "1")


def executor(**given: object) -> object:
    """Of the options that were given."""
    plain: dict[str, object] = dict.fromkeys(("jobs", "ray", "cpus", "gpus", "retries"))
    return _executor(**{**plain, **given})  # type: ignore[arg-type]


def test_options_reach_the_executor() -> None:
    assert executor() == executor(jobs="auto") == Automatic()
    assert executor(retries=0) == Automatic(retries=0)
    assert executor(jobs="3") == Processes(jobs=3)
    assert executor(jobs="3", retries=0) == Processes(jobs=3, retries=0)
    with pytest.raises(UsageError, match="must be 0 or more"):
        executor(jobs="3", retries=-1)


@with_ray
def test_options_reach_ray() -> None:
    assert executor(ray="auto") == Ray(address="auto")
    asked = executor(ray="local", cpus=1.0, gpus=0.5, retries=1)
    assert asked == Ray(address="local", cpus=1.0, gpus=0.5, retries=1)
