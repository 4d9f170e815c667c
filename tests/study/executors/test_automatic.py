"""The choice between one run at a time and several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attngraft.study.config import STUDY_FILE, read_study_file
from attngraft.study.executors import Automatic, Processes, Serial, automatic, placement
from attngraft.study.runner import prepare, write_study
from tests.study.executors.test_placement import recipe
from tests.study.fakes import FakeTrainer, study, tools


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "available_cores", lambda: 8)
    monkeypatch.setattr(placement, "_cores", lambda: list(range(8)))
    monkeypatch.setattr(automatic, "free_memory", lambda: 100 * 2**30)
    monkeypatch.setattr(automatic, "peak_memory", lambda: 2**30)


def test_as_many_runs_as_the_cores_allow() -> None:
    assert Automatic().chosen(recipe(1), runs=20, seconds=600) == Processes(jobs=8)
    assert Automatic().chosen(recipe(3), runs=20, seconds=600) == Processes(jobs=2)
    assert Automatic(retries=0).chosen(recipe(1), runs=3, seconds=600) == Processes(jobs=3, retries=0)
    assert Automatic().chosen(recipe(8), runs=20, seconds=600) == Serial()
    assert Automatic().chosen(recipe(1), runs=1, seconds=600) == Serial()


def test_processes_must_save_more_than_they_take_to_start() -> None:
    assert Automatic().chosen(recipe(1), runs=20, seconds=8) == Serial()
    assert Automatic().chosen(recipe(1), runs=2, seconds=25) == Processes(jobs=2)


def test_the_memory_limits_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "peak_memory", lambda: 40 * 2**30)
    assert Automatic().chosen(recipe(1), runs=20, seconds=600) == Processes(jobs=2)
    monkeypatch.setattr(automatic, "peak_memory", lambda: 80 * 2**30)
    assert Automatic().chosen(recipe(1), runs=20, seconds=600) == Serial()
    monkeypatch.setattr(automatic, "free_memory", lambda: None)  # unknown
    assert Automatic().chosen(recipe(1), runs=20, seconds=600) == Processes(jobs=8)


def test_runs_share_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "accelerator_device", lambda: torch.device("cuda"))
    assert Automatic().chosen(recipe(1), runs=20, seconds=600) == Serial()


def test_chosen_threads_are_printed_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    chosen: list[int] = [2, 1]
    quick = replace(tools(FakeTrainer(), epoch_seconds=20.0), choose_threads=lambda *_: chosen.pop(0))
    first = prepare(study(tmp_path), executor=Automatic(), tools=quick)
    assert "4 at a time, with 2 CPU threads each" in caplog.text
    assert {run.recipe.train.threads for run in first.runs} == {2}
    write_study(first)
    assert read_study_file(tmp_path / STUDY_FILE)["fitted_threads"] == 2
    again = prepare(study(tmp_path), executor=Automatic(), tools=quick)
    assert {run.recipe.train.threads for run in again.runs} == {2}
    own = prepare(study(tmp_path, set=["train.threads=3"]), executor=Automatic(), tools=quick)
    assert {run.recipe.train.threads for run in own.runs} == {3}
    assert chosen == [1]


def test_halving_trains_one_run_at_a_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    quick = tools(FakeTrainer(), epoch_seconds=20.0)
    prepare(study(tmp_path, halving=2, epochs=8), executor=Automatic(), tools=quick)
    assert "one at a time, with 1 CPU thread each" in caplog.text
