"""What is to be done next in a study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attngraft.study.executors.work import Outcome, Work
from attngraft.study.schedule import PlannedRun


class Queue(Protocol):
    """Decides which piece of work comes next, also by what became of earlier ones."""

    def next(self) -> Work | None:
        """A piece of work that nobody is at; None where there is none now."""

    def done(self, work: Work, outcome: Outcome) -> None:
        """A piece of work that came from here has ended."""

    def left_of_seed(self, seed: int) -> bool:
        """Whether runs of `seed` are still to come or under way."""


class EveryRun:
    """All runs to their end, in the order of the plan."""

    def __init__(self, runs: Sequence[PlannedRun]) -> None:
        self._waiting = [run for run in runs if run.state != "finished"]
        self._at_work: list[PlannedRun] = []

    def next(self) -> Work | None:
        if not self._waiting:
            return None
        run = self._waiting.pop(0)
        self._at_work.append(run)
        return Work(run=run)

    def done(self, work: Work, outcome: Outcome) -> None:
        self._at_work.remove(work.run)

    def left_of_seed(self, seed: int) -> bool:
        return any(run.seed == seed for run in [*self._waiting, *self._at_work])
