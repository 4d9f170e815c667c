"""Several runs at a time in real processes: deaths, failures, interruptions, and that nobody stays behind."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from attngraft.errors import TrainingError, UsageError
from attngraft.study import StudyResult, compare, incomplete
from attngraft.study.executors import Processes
from proof.faults.process import forkserver
from tests.slow import product_but
from tests.study.fakes import study, tools

from .laborers import Laborer, gone, processes


def _import(name: str) -> object:
    return importlib.import_module(name)


def plain(result: StudyResult) -> StudyResult:
    """Without what differs between two studies of the same."""
    return dataclasses.replace(result, created="", command="", notes=[])


@pytest.mark.slow
def test_a_death_and_a_failure_leave_the_others_going(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    alone = compare(study(tmp_path / "a"), tools=tools(Laborer({"cb_s": 0.1}, fails={("horizontal", 1)})))
    trainer = Laborer({"cb_s": 0.1}, dies={("cb_s", 0): 1}, fails={("horizontal", 1)})
    with caplog.at_level(logging.INFO, logger="attngraft"):
        result = compare(study(tmp_path / "b"), tools=tools(trainer), executor=Processes(jobs=2))
    assert dataclasses.replace(plain(result), command="") == plain(alone)
    assert incomplete(result)
    text = " ".join(result.notes)
    assert "cb_s, seed 0: its process was ended by SIGKILL; it was resumed from its last checkpoint" in text
    assert "horizontal, seed 1 failed: RuntimeError: out of luck (traceback: " in text
    assert "was resumed" not in " ".join(note for note in result.notes if "horizontal" in note)
    found = processes(tmp_path / "b")
    assert 2 <= len(found) <= 3  # two, one of them maybe replaced, though six runs were made
    assert os.getpid() not in found
    assert gone(found)
    assert "baseline, seed 0: finished, top1" in caplog.text


@pytest.mark.slow
def test_a_run_that_kills_its_process_again_and_again_is_given_up(tmp_path: Path) -> None:
    trainer = Laborer(dies={("cb_s", 0): 9})
    result = compare(study(tmp_path, seeds=1), tools=tools(trainer), executor=Processes(jobs=1, retries=1))
    assert [len(variant.runs) for variant in result.variants] == [1, 0, 1]
    assert any("cb_s, seed 0 failed: its process was ended by SIGKILL, 2 times in all" in note for note in result.notes)
    assert len(list((tmp_path / "runs" / "cb_s" / "seed0").glob("death*"))) == 2


@pytest.mark.slow
def test_ctrl_c_stops_all_and_all_save(tmp_path: Path) -> None:
    waits = frozenset({("none", 0), ("cb_s", 0)})
    config = study(tmp_path)
    waiting = [tmp_path / "runs" / name / "seed0" / "waiting" for name in ("baseline", "cb_s")]

    def ctrl_c() -> None:
        while not all(path.exists() for path in waiting):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=ctrl_c, daemon=True).start()
    with pytest.raises(KeyboardInterrupt, match="rerun the same command to resume"):
        compare(config, tools=tools(Laborer(waits=waits)), executor=Processes(jobs=2))
    assert all(path.with_name("saved").exists() for path in waiting)
    assert gone(processes(tmp_path))
    assert not incomplete(compare(config, tools=tools(Laborer()), executor=Processes(jobs=2)))


def _give_work(out: Path) -> None:
    """In a process of its own, whose workers start anew."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    waits = frozenset({("none", 0), ("cb_s", 0)})
    compare(study(out), tools=tools(Laborer(waits=waits)), executor=Processes(jobs=2))


@pytest.mark.parametrize("how", product_but([signal.SIGKILL, signal.SIGTERM], [signal.SIGKILL]))
def test_nobody_outlives_whoever_gave_the_work(tmp_path: Path, how: signal.Signals) -> None:
    out = tmp_path / "study"
    parent = forkserver.Process(target=_give_work, args=(out,))
    parent.start()
    waiting = [out / "runs" / name / "seed0" / "waiting" for name in ("baseline", "cb_s")]
    deadline = time.monotonic() + 120
    while not all(path.exists() for path in waiting):
        assert parent.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert parent.pid is not None
    os.kill(parent.pid, how)
    parent.join(30)
    assert not parent.is_alive()
    assert gone(processes(out))
    assert all(path.with_name("saved").exists() for path in waiting)


@pytest.mark.slow
def test_processes_that_cannot_begin_are_told_of_once(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"no worker process can be started: .*`if __name__ == "):
        compare(study(tmp_path), tools=tools(NotThere()), executor=Processes(jobs=1))


class NotThere(Laborer):
    """Cannot be made again on the other side."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return _import, ("no.such.module",)


def test_a_trainer_that_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    kit = dataclasses.replace(tools(Laborer()), train=lambda *args, **kwargs: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(UsageError, match="define it at the top level of a module"):
        compare(study(tmp_path), tools=kit, executor=Processes(jobs=1))


def test_a_number_of_jobs_that_makes_no_sense() -> None:
    with pytest.raises(UsageError, match="--jobs must be at least 1"):
        Processes(jobs=0)
