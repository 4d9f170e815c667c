"""Where living workers find themselves: their cores, threads and device, as they themselves see them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from attngraft.study import compare
from attngraft.study.executors import Processes, placement
from tests.study.fakes import study, tools

from .laborers import PLACE_FILE, Laborer, processes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no process to cores"),
]
TOGETHER = frozenset({("none", 0), ("cb_s", 0)})


def places_of(out: Path, *, threads: int = 1) -> list[dict[str, Any]]:
    """What each of two workers said that were at work at the same time."""
    config = study(out, seeds=1, grafts=["cb_s"], set=[f"train.threads={threads}"])
    compare(config, tools=tools(Laborer(together=TOGETHER)), executor=Processes(jobs=2))
    assert len(processes(out)) == 2
    return [json.loads(path.read_text()) for path in sorted(out.rglob(PLACE_FILE))]


@pytest.mark.skipif(len(placement._cores()) < 2, reason="two runs with a core each take two cores")
def test_each_has_cores_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_devices", list)
    before = os.sched_getaffinity(0)
    one, other = places_of(tmp_path)
    assert one["cores"]
    assert len(one["cores"]) == len(other["cores"]) == len(before) // 2
    assert not set(one["cores"]) & set(other["cores"])
    assert set(one["cores"]) | set(other["cores"]) <= before
    assert [each["threads"] for each in (one, other)] == [1, 1]
    assert [each["omp"] for each in (one, other)] == [1, 1]
    assert [each["device"] for each in (one, other)] == [os.environ.get("CUDA_VISIBLE_DEVICES")] * 2
    assert os.sched_getaffinity(0) == before  # who gave the work stays where it is


def test_each_has_a_device_of_its_own_and_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_devices", lambda: ["5", "7"])
    threads = torch.get_num_threads() + 1  # more than a process has by itself
    one, other = places_of(tmp_path, threads=threads)
    assert {one["device"], other["device"]} == {"5", "7"}
    assert [each["threads"] for each in (one, other)] == [threads, threads]
    assert [each["omp"] for each in (one, other)] == [threads, threads]
    assert set(one["cores"]) == set(other["cores"]) == os.sched_getaffinity(0)
