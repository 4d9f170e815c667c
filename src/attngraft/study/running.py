"""From a queue of work to a crew: what is begun when, who is told, and what a reader must know of it afterwards."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attngraft.errors import AttngraftError
from attngraft.results.storage import save_result
from attngraft.study.collect import collect
from attngraft.study.executors.work import Crew, Executor, Outcome, Train, Work
from attngraft.study.progress import StudyProgress
from attngraft.study.queue import EveryRun, Queue

if TYPE_CHECKING:
    from attngraft.study.config import StudyConfig
    from attngraft.study.schedule import PlannedRun

log = logging.getLogger(__name__)


def run_all(
    config: StudyConfig, runs: Sequence[PlannedRun], *, executor: Executor, train: Train, progress: StudyProgress
) -> list[str]:
    """Make every run that is left.

    Args:
        config: the study.
        runs: as they were planned.
        executor: who carries them out.
        train: the trainer.
        progress: who is told.

    Returns:
        Notes on runs that failed and on processes that were lost.

    Raises:
        Interrupted: Ctrl-C or SIGTERM; everything is kept.
    """
    queue = _queue(config, runs)
    first = queue.next()
    if first is None:
        return []
    with _told_how_to_go_on(config), executor.crew(train=train, recipe=runs[0].recipe, out=config.out) as crew:
        return _Foreman(config, runs, queue, crew, progress).see_to_it(first)


def _queue(config: StudyConfig, runs: Sequence[PlannedRun]) -> Queue:
    if config.halving is None:
        return EveryRun(runs)
    from attngraft.study.halving import HalvingQueue

    return HalvingQueue(config, config.halving, runs)


class _Foreman:
    """Keeps a crew busy."""

    def __init__(
        self, config: StudyConfig, runs: Sequence[PlannedRun], queue: Queue, crew: Crew, progress: StudyProgress
    ) -> None:
        self._config, self._queue, self._crew, self._progress = config, queue, crew, progress
        self._seeds_left = {run.seed for run in runs if queue.left_of_seed(run.seed)}
        self._at_work = 0
        self._next_look = 0.0
        self.notes: list[str] = []

    def see_to_it(self, first: Work) -> list[str]:
        """Everything that comes out of the queue, beginning with `first`; the notes."""
        try:
            work: Work | None = first
            while True:
                while work is not None:
                    self._begin(work)
                    work = self._queue.next() if self._at_work < self._crew.slots else None
                if not self._at_work:
                    return self.notes
                for each, outcome in self._crew.wait():
                    self._ended(each, outcome)
                work = self._queue.next() if self._at_work < self._crew.slots else None
        except KeyboardInterrupt:
            for each, _ in self._crew.stop():
                self._progress.on_run_end(each.run, "stopped", "")
            raise

    def _begin(self, work: Work) -> None:
        self._crew.start(work, self._progress.on_run(work.run))
        self._at_work += 1

    def _ended(self, work: Work, outcome: Outcome) -> None:
        self._at_work -= 1
        label = work.run.label
        if outcome.kind == "stopped":  # somebody asked the run, and so the study, to stop
            self._progress.on_run_end(work.run, "stopped", "")
            raise KeyboardInterrupt
        self._progress.on_run_end(work.run, outcome.kind, outcome.message)
        if outcome.deaths and outcome.kind != "failed":
            times = "" if len(outcome.deaths) == 1 else f", {len(outcome.deaths)} times in all"
            self.notes.append(f"{label}: its process {outcome.deaths[-1]}{times}; it went on from its last checkpoint.")
        if outcome.kind == "failed":
            self.notes.append(f"{label} failed: {outcome.message}")
        self._queue.done(work, outcome)
        self._look_in()

    def _look_in(self) -> None:
        """Results after each seed, for who looks in while the study runs; they take a twentieth of its time at most."""
        over = {seed for seed in self._seeds_left if not self._queue.left_of_seed(seed)}
        self._seeds_left -= over
        begin = time.monotonic()
        if not over or not self._seeds_left or begin < self._next_look:
            return
        try:
            save_result(collect(self._config, notes=self.notes), self._config.out)
        except AttngraftError as error:
            log.warning("no results yet: %s", error)
        end = time.monotonic()
        self._next_look = end + 20 * (end - begin)


@contextmanager
def _told_how_to_go_on(config: StudyConfig) -> Iterator[None]:
    """Turn an interruption of runs into one of the study."""
    from attngraft.training.stopping import Interrupted

    try:
        yield
    except KeyboardInterrupt as stop:
        raise Interrupted(
            f"the study in {config.out} was stopped and everything is kept: rerun the same command to resume; "
            f"`attngraft compare --report-only --out {config.out}` reports on finished runs"
        ) from stop
