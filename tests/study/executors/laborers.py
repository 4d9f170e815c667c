"""Trainers for worker processes: they leave behind who did what, and die, hang or wait when they are told to."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from attngraft.files import write_atomically
from tests.study.fakes import FakeTrainer

PLACE_FILE = "place.json"
Run = tuple[str, int]  #: specification and seed


class Laborer(FakeTrainer):
    """Writes its process id beside the run; kills its own process `dies[run]` times, each time after the first epoch.

    The run `stranded` names its Ray node and hangs there, once. Runs in `waits` say that they have come to epoch
    `waits_in` and wait until they are stopped; then they save, which takes a moment. Those that are `together` wait for
    each other in their first epoch. Each run leaves how its process sees its place.
    """

    def __init__(
        self,
        gains: Mapping[str, float] | None = None,
        *,
        dies: Mapping[Run, int] | None = None,
        waits: frozenset[Run] = frozenset(),
        waits_in: int = 1,
        together: frozenset[Run] = frozenset(),
        stranded: Run | None = None,
        by: int = signal.SIGKILL,
        fails: set[Run] = frozenset(),  # type: ignore[assignment]
    ) -> None:
        super().__init__(gains, fails=fails)
        self.dies, self.waits, self.stranded, self.by = dies or {}, waits, stranded, by
        self.waits_in, self.together = waits_in, together

    def during(self, spec: str, seed: int, epoch: int, folder: Path) -> None:
        with (folder / "processes").open("a") as file:
            file.write(f"{os.getpid()}\n")
        (folder / PLACE_FILE).write_text(json.dumps(_place()))
        if (spec, seed) in self.together and epoch == 1:
            (folder / "together").touch()
            deadline = time.monotonic() + 60
            while len(list(folder.parents[1].rglob("together"))) < len(self.together):
                assert time.monotonic() < deadline, "alone at work"
                time.sleep(0.02)
        if epoch == 2 and len(list(folder.glob("death*"))) < self.dies.get((spec, seed), 0):
            (folder / f"death{time.time_ns()}").touch()
            os.kill(os.getpid(), self.by)
            time.sleep(60)
        if (spec, seed) == self.stranded and epoch == 2 and not (folder / "node").exists():
            import ray

            write_atomically(folder / "node", ray.get_runtime_context().get_node_id())
            time.sleep(120)
        if (spec, seed) in self.waits and epoch == self.waits_in:
            (folder / "waiting").touch()
            try:
                for _ in range(1200):  # Ray's way to interrupt a task does not wake one that sleeps
                    time.sleep(0.1)
            finally:
                time.sleep(0.3)
                (folder / "saved").touch()


def _place() -> dict[str, object]:
    """Cores, threads and device of this process."""
    import torch

    omp = re.search(r"omp_get_max_threads\(\) : (\d+)", torch.__config__.parallel_info())
    return {
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "threads": torch.get_num_threads(),
        "omp": None if omp is None else int(omp[1]),
        "device": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def processes(out: Path) -> set[int]:
    """The process ids of all who were at work in a study."""
    return {int(line) for path in out.rglob("processes") for line in path.read_text().split()}


def alive(process: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone(found: set[int], *, within: float = 60.0) -> bool:
    """Whether none of these processes is left, after a while."""
    deadline = time.monotonic() + within
    while any(map(alive, found)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(map(alive, found))
