"""Runs as tasks of Ray clusters on this machine: workers and nodes that die, interruptions, and other executors' studies."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from attngraft.errors import UsageError
from attngraft.study import compare, incomplete
from attngraft.study.executors import Processes, Ray
from attngraft.study.executors import ray as module
from attngraft.study.executors.base import Outcome, RunTask
from attngraft.study.plan import resolve_runs
from tests.study.fakes import FakeTrainer, study, tools

from .laborers import Laborer, gone, processes
from .test_processes import plain

with_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra ray)")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs, so that every run is on a node that may die."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    path = os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])
    environment = {"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    cluster.add_node(num_cpus=1)
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, runtime_env=environment)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@with_ray
@pytest.mark.product
def test_a_cluster(tmp_path: Path, cluster: Any) -> None:
    """In one test, as processes that share the tests do not share a cluster."""
    check_that_deaths_and_a_failure_leave_the_others_going(tmp_path / "deaths", cluster)
    check_that_ctrl_c_stops_all_and_all_save(tmp_path / "stopped")


def check_that_deaths_and_a_failure_leave_the_others_going(tmp_path: Path, cluster: Any) -> None:
    """A worker is killed, a run fails, and a node is taken away that is at work on a run; another one goes on with it."""
    fails = {("horizontal", 1)}
    alone = compare(study(tmp_path / "a"), tools=tools(FakeTrainer({"cb_s": 0.1}, fails=fails)))
    name = tmp_path / "b" / "runs" / "cb_s" / "seed1" / "node"

    def take_away() -> None:
        while not name.exists():
            time.sleep(0.05)
        node = next(node for node in cluster.worker_nodes if node.node_id == name.read_text())
        cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=take_away, daemon=True)
    killer.start()
    trainer = Laborer({"cb_s": 0.1}, dies={("cb_s", 0): 1}, stranded=("cb_s", 1), fails=fails)
    result = compare(study(tmp_path / "b"), tools=tools(trainer), executor=Ray(cpus=1))
    killer.join(60)
    cluster.add_node(num_cpus=1)
    assert plain(result) == plain(alone)
    text = " ".join(result.notes)
    assert "cb_s, seed 0: its process was killed, or crashed; it was resumed from its last checkpoint" in text
    assert "cb_s, seed 1: its process was " in text
    assert len(set((name.parent / "processes").read_text().split())) == 2
    assert "horizontal, seed 1 failed: RuntimeError: out of luck (traceback: " in text
    assert os.getpid() not in processes(tmp_path / "b")
    assert not (tmp_path / "b" / module.BEACON).exists()


def check_that_ctrl_c_stops_all_and_all_save(tmp_path: Path) -> None:
    waits = frozenset({("none", 0), ("cb_s", 0)})
    waiting = [tmp_path / "runs" / name / "seed0" / "waiting" for name in ("baseline", "cb_s")]

    def ctrl_c() -> None:
        while not all(path.exists() for path in waiting):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=ctrl_c, daemon=True).start()
    with pytest.raises(KeyboardInterrupt, match="rerun the same command to resume"):
        compare(study(tmp_path), tools=tools(Laborer(waits=waits)), executor=Ray(cpus=1))
    assert all(path.with_name("saved").exists() for path in waiting)
    others = Laborer()
    assert not incomplete(compare(study(tmp_path), tools=tools(others), executor=Processes(jobs=1)))


@with_ray
@pytest.mark.product
def test_a_run_that_kills_its_worker_again_and_again_is_given_up(tmp_path: Path, cluster: Any) -> None:
    trainer = Laborer(dies={("cb_s", 0): 9})
    result = compare(study(tmp_path, seeds=1), tools=tools(trainer), executor=Ray(cpus=1, retries=1))
    assert [len(variant.runs) for variant in result.variants] == [1, 0, 1]
    assert any("cb_s, seed 0 failed: its process was killed, or crashed, 2 times" in note for note in result.notes)


@with_ray
@pytest.mark.slow
def test_a_local_cluster_finishes_what_processes_began(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import ray

    if ray.is_initialized():
        ray.shutdown()
    compare(study(tmp_path, seeds=1), tools=tools(Laborer({"cb_s": 0.1})), executor=Processes(jobs=2))
    before = processes(tmp_path)
    with caplog.at_level(logging.INFO, logger="attngraft"):
        result = compare(study(tmp_path), tools=tools(Laborer({"cb_s": 0.1})), executor=Ray())
    alone = compare(study(tmp_path / "alone"), tools=tools(FakeTrainer({"cb_s": 0.1})))
    assert plain(result) == plain(alone)
    assert not processes(tmp_path) <= before
    assert gone(processes(tmp_path))
    assert not ray.is_initialized()
    assert "baseline, seed 1: epoch 3/3" in caplog.text  # told by what appears in the folder


def test_ray_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'attngraft\[ray\]'"):
        Ray()


@with_ray
def test_numbers_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="--cpus-per-run must not be negative"):
        Ray(cpus=-1)


def test_a_node_that_does_not_see_the_folder_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    task = RunTask(run=resolve_runs(study(tmp_path)).runs[0])
    beacon = tmp_path / module.BEACON
    threads = torch.get_num_threads()  # what it has, so that nothing changes here

    def run() -> Outcome:
        where = {"threads": threads, "cwd": str(tmp_path), "beacon": beacon, "beacon_text": "here"}
        return module._run_on_node(task, FakeTrainer(), **where)

    for text in (None, "another study"):  # no file at all, or that of a folder of the same name
        if text is not None:
            beacon.write_text(text)
        outcome = run()
        assert outcome.kind == "failed"
        assert "on storage that all nodes mount at the same path" in outcome.message
    beacon.write_text("here")
    assert run().kind == "finished"
