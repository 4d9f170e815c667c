"""Several runs at a time on one machine, each in a process of its own that has its device or cores.

Processes are kept for the next run, as starting one takes seconds. One that dies (killed, out of memory, a crash in
native code) is replaced, and its run goes on from its last checkpoint, up to `retries` times.
"""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import connection as pipes
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngraft.errors import TrainingError, UsageError
from attngraft.study.executors.placement import Place, at_full_speed, places, threads_of_a_run
from attngraft.study.executors.signals import sigterm_interrupts
from attngraft.study.executors.work import Crew, Outcome, Train, Work
from attngraft.study.executors.worker import STOP, main

if TYPE_CHECKING:
    from attngraft.training.progress import Progress
    from attngraft.training.recipe import Recipe

log = logging.getLogger(__name__)

_LOOK_EVERY = 0.5  #: seconds between two looks at who is still alive
_FAREWELL = 10.0  #: seconds that an idle process has to end


@dataclass(frozen=True, kw_only=True)
class Processes:
    """`jobs` runs at a time; a run whose process dies goes on `retries` times.

    Raises:
        UsageError: less than one job; later, a trainer that cannot be sent to another process.
        TrainingError: later, no process comes as far as to begin.
    """

    jobs: int
    retries: int = 2

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise UsageError(f"--jobs: at least one run at a time is needed, not {self.jobs}")

    def at_once(self, recipe: Recipe) -> int:
        return at_full_speed(self.jobs, recipe)

    @contextmanager
    def crew(self, *, train: Train, recipe: Recipe, out: Path) -> Iterator[Crew]:
        _refuse_unsendable(train)
        found = places(self.jobs, recipe)
        if self.at_once(recipe) < self.jobs:
            threads = threads_of_a_run(recipe)
            log.info(
                "%d runs at a time share what there is (each has %d CPU threads, as alone; --set train.threads=1 gives "
                "each run a core)",
                self.jobs,
                threads,
            )
        crew = _Processes(train, found, retries=self.retries)
        try:
            with sigterm_interrupts():
                yield crew
        finally:
            crew.dismiss()


def _refuse_unsendable(train: Train) -> None:
    try:
        pickle.dumps(train)
    except Exception as error:  # what an object raises that cannot be pickled is up to it
        raise UsageError(
            f"the trainer cannot be sent to other processes ({error}); define it at the top of a module"
        ) from None


class _Worker:
    """One process, and what it is at."""

    def __init__(self, train: Train, place: Place) -> None:
        context = multiprocessing.get_context("spawn")
        self.place = place
        self.pipe, theirs = context.Pipe()
        verbosity = logging.getLogger("attngraft").getEffectiveLevel()
        self.process: BaseProcess = context.Process(target=main, args=(theirs, train, place, verbosity), daemon=False)
        self.process.start()
        theirs.close()
        self.ready = False
        self.work: Work | None = None
        self.progress: Progress | None = None
        self.deaths: tuple[str, ...] = ()  #: of the processes that had this work before

    def give(self, work: Work, progress: Progress, *, deaths: tuple[str, ...] = ()) -> None:
        self.work, self.progress, self.deaths = work, progress, deaths
        self.tell(work)

    def tell(self, message: Any) -> None:
        """Say something, if there is still somebody to hear it."""
        try:
            self.pipe.send(message)
        except OSError:
            log.debug("process %s does not listen any more", self.process.pid)

    def hear(self) -> Outcome | None:
        """Pass on what has arrived; the outcome of the work, if that was among it."""
        while True:
            try:
                if not self.pipe.poll():
                    return None
                kind, *content = self.pipe.recv()
            except (EOFError, OSError):
                return None
            if kind == "outcome":
                return replace(content[0], deaths=self.deaths)
            if kind == "ready":
                self.ready = True
            elif kind == "log":
                self._log(content[0])
            elif self.progress is not None:
                method, args, kwargs = content
                getattr(self.progress, method)(*args, **kwargs)

    def end(self) -> str:
        """How the process died, in words."""
        code = self.process.exitcode
        if code is not None and code < 0:
            reason = f"was ended by {signal.Signals(-code).name}"
        else:
            reason = f"ended with status {code}"
        if not self.ready:
            reason += ' before it was ready. In a script, call compare() under `if __name__ == "__main__":`'
        return reason

    def _log(self, record: logging.LogRecord) -> None:
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            if self.work is not None:
                record.msg, record.args = f"{self.work.run.label}: {record.getMessage()}", ()
            logger.handle(record)


class _Processes:
    def __init__(self, train: Train, found: Sequence[Place], *, retries: int) -> None:
        self._train, self._retries = train, retries
        self._free = list(reversed(found))
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []
        self._anybody_began = False
        self.slots = len(found)

    def start(self, work: Work, progress: Progress) -> None:
        self._hand_over(work, progress)

    def wait(self) -> Sequence[tuple[Work, Outcome]]:
        while self._busy:
            ended = self._look(stopping=False)
            if ended:
                return ended
        return []

    def stop(self) -> Sequence[tuple[Work, Outcome]]:
        ended = []
        for worker in self._busy:
            worker.tell(STOP)
        while self._busy:
            ended += self._look(stopping=True)
        return ended

    def dismiss(self) -> None:
        """Send everybody home; who does not go is ended."""
        for worker in self._idle:
            worker.tell(None)
        for worker in self._busy:  # only where even stopping was interrupted
            worker.process.kill()
        for worker in [*self._idle, *self._busy]:
            worker.process.join(_FAREWELL)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()

    def _hand_over(self, work: Work, progress: Progress, *, deaths: tuple[str, ...] = ()) -> None:
        while self._idle:
            worker = self._idle.pop()
            if worker.process.is_alive():
                break
            self._bury(worker)
        else:
            worker = _Worker(self._train, self._free.pop())
        self._busy.append(worker)
        worker.give(work, progress, deaths=deaths)

    def _look(self, *, stopping: bool) -> list[tuple[Work, Outcome]]:
        """Wait a moment for news; what has ended. A worker's pipe may outlive it in the processes that load its data, so
        each is also asked for."""
        pipes.wait([worker.pipe for worker in self._busy], timeout=_LOOK_EVERY)
        ended = []
        for worker in list(self._busy):
            alive = worker.process.is_alive()  # before listening: its last words must not be missed
            outcome = worker.hear()
            self._anybody_began |= worker.ready
            work, progress = worker.work, worker.progress
            if work is None or progress is None or (outcome is None and alive):
                continue
            self._busy.remove(worker)
            if outcome is not None and (outcome.kind != "stopped" or stopping):
                worker.work = worker.progress = None
                self._idle.append(worker)
                ended.append((work, outcome))
                continue
            worker.process.join()
            self._bury(worker)
            reason = worker.end() if outcome is None else "was asked to stop"
            if not self._anybody_began and not stopping:
                raise TrainingError(f"no process for the runs can be started: the first one {reason}")
            ended += self._after_death(work, progress, (*worker.deaths, reason), stopping=stopping)
        return ended

    def _after_death(
        self, work: Work, progress: Progress, deaths: tuple[str, ...], *, stopping: bool
    ) -> list[tuple[Work, Outcome]]:
        """Go on with the run of a lost process in another one, or give it up."""
        if stopping:
            return [(work, Outcome(kind="stopped", deaths=deaths))]
        if len(deaths) > self._retries:
            message = f"its process {deaths[-1]}, {len(deaths)} times in all; the same command tries again"
            return [(work, Outcome(kind="failed", message=message, deaths=deaths))]
        log.warning("%s: its process %s; it goes on from its last checkpoint", work.run.label, deaths[-1])
        self._hand_over(work, progress, deaths=deaths)
        return []

    def _bury(self, worker: _Worker) -> None:
        worker.pipe.close()
        self._free.append(worker.place)
