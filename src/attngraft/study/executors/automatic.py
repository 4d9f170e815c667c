"""The choice between training runs one after the other in this process and several at a time in worker processes."""

from __future__ import annotations

from dataclasses import dataclass

from attngraft.devices import accelerator_device
from attngraft.study.executors.base import Executor, Serial
from attngraft.study.executors.placement import CONTENTION, available_cores, run_threads
from attngraft.study.executors.processes import Processes
from attngraft.timing.memory import free_memory, peak_memory
from attngraft.training.recipe import Recipe

START_SECONDS = 8.0  #: time until worker processes have imported everything and train


@dataclass(frozen=True, kw_only=True)
class Automatic(Serial):
    """Train as many runs at a time as the cores allow, if this is faster (`--jobs auto`).

    With an accelerator, which several runs would share, runs are trained one after the other.
    """

    retries: int = 2

    def concurrency(self, recipe: Recipe) -> int:
        if accelerator_device() is not None:
            return 1
        return max(available_cores() // run_threads(recipe), 1)

    def chosen(self, recipe: Recipe, *, runs: int, seconds: float) -> Executor:
        """Return the executor for `runs` runs that would take `seconds` one after the other."""
        jobs = min(self.concurrency(recipe), runs)
        free, used = free_memory(), peak_memory()
        if free and used:  # a worker takes about as much memory as this process, which has trained a few steps
            jobs = min(jobs, free // used)
        if jobs < 2 or seconds * CONTENTION / jobs + START_SECONDS > seconds:
            return Serial()
        return Processes(jobs=jobs, retries=self.retries)
