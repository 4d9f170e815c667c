"""Halving where several processes are at work: arrivals in any order, deaths, interruptions."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from attngraft.results.halving import read_halving
from attngraft.results.study import HalvingResult
from attngraft.study import StudyConfig, compare, incomplete
from attngraft.study.executors import Executor, Processes, Ray
from attngraft.study.plan import resolve_runs
from attngraft.study.rungs import Rungs
from tests.study.fakes import FakeTrainer, tools
from tests.study.test_halving import GAINS, GRAFTS, epochs, halved

from .laborers import Laborer, gone, processes

BEST = "cb_s@blocks.0"
FEW = GRAFTS[3:]  #: of three variants one goes on, whatever order they arrive in
TOGETHER = frozenset({("none", 0), (BEST, 0)})  #: two runs that only get on while both are at work


def decided(config: StudyConfig) -> HalvingResult:
    """What was decided; that it follows from the order of arrivals, and that all were trained just as far as it says."""
    kept = read_halving(config.out)
    assert kept is not None
    names = [variant.name for variant in config.variants[1:]]
    rungs = Rungs.replay(kept, names)
    assert rungs.result() == kept
    assert epochs(config) == {"baseline": {9}} | {name: {rungs.limit(name)} for name in names}
    return kept


def decisions(config: StudyConfig) -> set[tuple[str, int, float | None, bool]]:
    """Without the order in which they were made."""
    return {(each.variant, each.epoch, each.score, each.promoted) for each in decided(config).standings}


def rows(config: StudyConfig) -> dict[tuple[str, int], list[str]]:
    return {
        (run.variant.name, run.seed): (run.folder / "metrics.jsonl").read_text().splitlines()
        for run in resolve_runs(config).runs
    }


@pytest.fixture(scope="module")
def never_halved(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], list[str]]:
    """What each run leaves where nobody is stopped and one run is made after the other."""
    config = halved(tmp_path_factory.mktemp("whole"), halving=None)
    compare(config, tools=tools(FakeTrainer(GAINS)))
    return rows(config)


def check_halved(
    config: StudyConfig, executor: Executor, never_halved: dict[tuple[str, int], list[str]], reason: str
) -> None:
    """The best one's process dies on its way; still it goes to the end, as some do, and others do not."""
    trainer = Laborer(GAINS, dies={(BEST, 1): 1}, together=TOGETHER)
    result = compare(config, tools=tools(trainer), executor=executor)
    assert not incomplete(result)
    kept = decided(config)
    ended = {each.variant for each in kept.standings if each.promoted and each.epoch == kept.rungs[-1]}
    assert BEST in ended
    assert {variant.name for variant in result.variants if variant.difference is not None} == ended
    assert result.halving is not None
    assert set(result.halving.stopped) == set(GRAFTS) - ended
    assert "cb_s@blocks.1" in result.halving.stopped  # the worst of all never goes on
    for key, found in rows(config).items():
        assert found == never_halved[key][: len(found)], key
    assert f"{BEST}, seed 1: its process {reason}; it was resumed from its last checkpoint" in " ".join(result.notes)
    assert (config.out / "runs").is_dir()
    assert len(processes(config.out)) >= 2
    assert os.getpid() not in processes(config.out)


@pytest.mark.slow
def test_processes(tmp_path: Path, never_halved: dict[tuple[str, int], list[str]]) -> None:
    check_halved(halved(tmp_path), Processes(jobs=2), never_halved, "was ended by SIGKILL")
    assert gone(processes(tmp_path))


@pytest.mark.product
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra ray)")
def test_ray(tmp_path: Path, never_halved: dict[tuple[str, int], list[str]]) -> None:
    import ray

    if ray.is_initialized():  # by other tests, with another cluster
        ray.shutdown()
    if (os.cpu_count() or 1) < 2:
        pytest.skip("two runs at a time take two cores")
    check_halved(halved(tmp_path), Ray(cpus=1), never_halved, "was killed, or crashed")
    assert not ray.is_initialized()


@pytest.mark.product
def test_interrupted_between_two_decisions(tmp_path: Path) -> None:
    """Ctrl-C once the first rung has decided; the same call goes on, and comes to what one process alone comes to."""
    alone, config = halved(tmp_path / "alone", grafts=FEW), halved(tmp_path / "both", grafts=FEW)
    compare(alone, tools=tools(FakeTrainer(GAINS)))
    waiting = [run.folder / "waiting" for run in resolve_runs(config).runs if run.variant.name == BEST]

    def ctrl_c() -> None:
        while not all(path.exists() for path in waiting):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=ctrl_c, daemon=True).start()
    stopped = Laborer(GAINS, waits=frozenset({(BEST, 0), (BEST, 1)}), waits_in=2)
    with pytest.raises(KeyboardInterrupt, match="rerun the same command to resume"):
        compare(config, tools=tools(stopped), executor=Processes(jobs=2))
    before = read_halving(config.out)
    assert before is not None
    assert [each.variant for each in before.standings if each.promoted] == [BEST]
    assert epochs(config)[BEST] == {1}
    result = compare(config, tools=tools(Laborer(GAINS)), executor=Processes(jobs=2))
    assert not incomplete(result)
    assert decided(config).standings[: len(before.standings)] == before.standings
    assert decisions(config) == decisions(alone)
    assert epochs(config) == epochs(alone) == {"baseline": {9}, BEST: {9}, "vertical": {1}, "cb_s@blocks.1": {1}}
    assert rows(config) == rows(alone)
    file = config.out / "halving.json"
    kept = json.loads(file.read_text())
    idle = FakeTrainer(GAINS)
    compare(config, tools=tools(idle), executor=Processes(jobs=2))
    assert json.loads(file.read_text()) == kept
