"""Which process gets which cores, device and threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from attngraft.study.executors import placement
from attngraft.study.executors.placement import ProcessPlacement, concurrent_runs, placements, run_threads
from attngraft.training.recipe import Recipe
from tests.study.fakes import study


def recipe(threads: int | None) -> Recipe:
    changes = [] if threads is None else [f"train.threads={threads}"]
    config = study(Path("unused"), set=changes)
    return config.recipe_of(config.baseline, 0)


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_cores", lambda: list(range(8)))
    monkeypatch.setattr(placement, "_devices", list)


def test_threads_are_the_recipes_or_those_of_a_run_alone(eight_cores: None) -> None:
    assert run_threads(recipe(3)) == 3
    assert run_threads(recipe(None)) == torch.get_num_threads()
    assert {place.threads for jobs in (1, 2, 8) for place in placements(jobs, recipe(3))} == {3}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to cores")
def test_cores_are_shared_out_where_a_runs_threads_fit(eight_cores: None) -> None:
    assert [place.cores for place in placements(2, recipe(4))] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [place.cores for place in placements(3, recipe(1))] == [(0, 1), (2, 3), (4, 5)]
    assert [place.cores for place in placements(4, recipe(3))] == [(), (), (), ()]
    assert [concurrent_runs(jobs, recipe(3)) for jobs in (1, 2, 4)] == [1, 2, 2]
    assert concurrent_runs(2, recipe(16)) == 1


def test_devices_are_dealt_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "false")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [place.device for place in placements(3, recipe(1))] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    found = placements(3, recipe(1))
    assert [place.device for place in found] == ["5", "7", "5"]
    assert all(place.cores == () for place in found)
    assert concurrent_runs(3, recipe(1)) == 2


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to cores")
def test_a_place_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    try:
        ProcessPlacement(threads=1, cores=(min(cores),), device="3").apply()
        assert os.sched_getaffinity(0) == {min(cores)}
        assert torch.get_num_threads() == 1
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
