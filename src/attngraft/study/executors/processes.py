"""Several runs at a time on one machine, each in a worker process with its own device or cores.

Workers are reused, because starting a process may take seconds. A worker that dies (killed, out of memory, a crash in native
code) is replaced. Each worker has two pipes: `pipe` transfers tasks, outcomes, log records and progress; `lifeline` is never
written to. `lifeline` closes when the study stops or its process dies; the worker then saves its run and exits.
"""

from __future__ import annotations

import logging
import logging.handlers
import multiprocessing
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn, cast

from attngraft.errors import TrainingError, UsageError
from attngraft.forking import worker_context
from attngraft.leaving import leave_now
from attngraft.study.executors.base import (
    PATIENCE,
    Outcome,
    Pool,
    RunTask,
    TrainRun,
    raise_interrupt,
    run_task,
    sigterm_interrupts,
)
from attngraft.study.executors.placement import ProcessPlacement, concurrent_runs, placements, run_threads
from attngraft.training.progress import Progress
from attngraft.training.recipe import Recipe

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5  #: seconds between checks for dead workers
_EXIT_SECONDS = 10.0  #: seconds to wait for an idle worker to exit
_STEP_SECONDS = 0.25  #: minimum seconds between progress messages about steps


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Train `jobs` runs at a time; a run whose process dies is resumed up to `retries` times.

    Raises:
        UsageError: `jobs` is less than 1, or the training function passed to `pool` cannot be pickled.
        TrainingError: no worker process can be started (raised by the pool's `wait`).
    """

    jobs: int
    retries: int = 2

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise UsageError(f"--jobs must be at least 1; got {self.jobs}")

    def concurrency(self, recipe: Recipe) -> int:
        return concurrent_runs(self.jobs, recipe)

    @contextmanager
    def pool(self, *, train_run: TrainRun, recipe: Recipe, out: Path) -> Iterator[Pool]:
        try:
            pickle.dumps(train_run)
        except Exception as error:  # the type depends on the object
            raise UsageError(
                f"the training function cannot be sent to other processes ({error}); define it at the top level of a module"
            ) from None
        if self.concurrency(recipe) < self.jobs:
            log.info(
                "%d concurrent runs share cores or devices (each uses %d CPU threads, as it would alone; "
                "--set train.threads=1 gives each run its own core)",
                self.jobs,
                run_threads(recipe),
            )
        pool = _ProcessPool(train_run, placements(self.jobs, recipe))
        try:
            with sigterm_interrupts():
                yield pool
        finally:
            pool.close()


class _ProcessPool:
    def __init__(self, train_run: TrainRun, found: Sequence[ProcessPlacement]) -> None:
        self._train_run = train_run
        self._free = list(reversed(found))
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []
        self._any_started = False
        self.slots = len(found)

    def submit(self, task: RunTask, progress: Progress) -> None:
        while self._idle and not self._idle[-1].process.is_alive():
            self._free.append(self._idle.pop().placement)
        worker = self._idle.pop() if self._idle else _Worker(self._train_run, self._free.pop())
        worker.task, worker.progress = task, progress
        with suppress(OSError):  # the worker has died; `wait` handles this
            worker.pipe.send(task)
        self._busy.append(worker)

    def wait(self) -> Sequence[tuple[RunTask, Outcome]]:
        ended: list[tuple[RunTask, Outcome]] = []
        while self._busy and not ended:
            connection.wait([worker.pipe for worker in self._busy], timeout=_POLL_SECONDS)
            for worker in list(self._busy):
                # loading processes may keep a dead worker's pipe open; check before reading, to not miss a last message
                alive = worker.process.is_alive()
                outcome = worker.read()
                self._any_started |= worker.ready
                if worker.task is None or (outcome is None and alive):
                    continue
                if outcome is None or outcome.kind == "stopped":  # the worker died, or was interrupted from outside
                    worker.process.join()
                    reason = worker.exit_reason() if outcome is None else "was interrupted"
                    if not self._any_started:
                        raise TrainingError(f"no worker process can be started: the first one {reason}")
                    outcome = Outcome(kind="lost", message=reason)
                    self._free.append(worker.placement)
                else:
                    self._idle.append(worker)
                self._busy.remove(worker)
                ended.append((worker.task, outcome))
        return ended

    def stop(self) -> None:
        for worker in self._busy:
            worker.lifeline.close()
        while any(worker.process.is_alive() for worker in self._busy):
            connection.wait([worker.process.sentinel for worker in self._busy], timeout=0.05)
            for worker in self._busy:
                worker.read()  # a full pipe would block the worker
        self._busy = []

    def close(self) -> None:
        """End all workers. Workers that are still busy because `stop` was interrupted are killed."""
        for worker in self._busy:
            worker.process.kill()
        for worker in self._idle:
            worker.pipe.close()
        for worker in [*self._idle, *self._busy]:
            worker.process.join(_EXIT_SECONDS)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


class _Worker:
    """Handle of one worker process, used in the study's process."""

    def __init__(self, train_run: TrainRun, placement: ProcessPlacement) -> None:
        context = worker_context()
        self.placement = placement
        self.pipe, workers_pipe = context.Pipe()
        workers_lifeline, self.lifeline = context.Pipe(duplex=False)
        level = logging.getLogger("attngraft").getEffectiveLevel()
        self.process: BaseProcess = context.Process(
            target=_work,
            args=(
                workers_pipe,
                workers_lifeline,
                train_run,
                placement,
                level,
                multiprocessing.get_start_method(),
                dict(os.environ),
            ),
            daemon=False,
        )
        self.process.start()
        workers_pipe.close()
        workers_lifeline.close()
        self.ready = False
        self.task: RunTask | None = None
        self.progress: Progress | None = None

    def read(self) -> Outcome | None:
        """Handle all received messages; return the outcome of the task, or None if it has not arrived."""
        with suppress(EOFError, OSError):
            while self.pipe.poll():
                kind, *content = self.pipe.recv()
                if kind == "outcome":
                    return cast(Outcome, content[0])
                if kind == "ready":
                    self.ready = True
                elif kind == "log":
                    self._log(content[0])
                elif self.progress is not None:
                    callback, args, kwargs = content
                    getattr(self.progress, callback)(*args, **kwargs)
        return None

    def exit_reason(self) -> str:
        code = self.process.exitcode
        killed = code is not None and code < 0
        reason = f"was ended by {signal.Signals(-code).name}" if killed and code else f"exited with status {code}"
        if not self.ready:
            reason += ' before it was ready. In a script, call compare() under `if __name__ == "__main__":`'
        return reason

    def _log(self, record: logging.LogRecord) -> None:
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            if self.task is not None:
                record.msg, record.args = f"{self.task.run.label}: {record.getMessage()}", ()
            logger.handle(record)


def _work(
    pipe: Connection,
    lifeline: Connection,
    train_run: TrainRun,
    placement: ProcessPlacement,
    level: int,
    start_method: str,
    environment: dict[str, str],
) -> NoReturn:
    """Main function of a worker process: run tasks from `pipe` until `pipe` or `lifeline` closes.

    `start_method` and `environment` are those of the study's process. A worker would otherwise start its loading processes
    in the way that it was started itself, which takes longer.

    Messages sent back: ("ready",), ("progress", callback, args, kwargs), ("log", record), ("outcome", outcome).
    """
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes of a terminal, but the study stops its workers itself
    signal.signal(signal.SIGTERM, raise_interrupt)
    multiprocessing.set_start_method(start_method, force=True)
    os.environ.update(environment)
    # torch compares the number of loading processes with this process's share of the cores
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    placement.apply()
    channel = _Channel(pipe)
    logging.getLogger().handlers[:] = [channel]
    logging.getLogger("attngraft").setLevel(level)
    logging.captureWarnings(True)
    with suppress(KeyboardInterrupt, EOFError, OSError):  # OSError: the study's process died, and the run is saved
        threading.Thread(target=_interrupt_at_end_of, args=(lifeline,), daemon=True).start()
        channel.send("ready")
        while True:
            outcome = run_task(pipe.recv(), train_run, cast(Progress, _SentProgress(channel)), patience=PATIENCE)
            channel.send("outcome", outcome)
            if outcome.kind == "stopped":
                break
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leave_now(0)  # exit fast: the study waits for this process


class _Channel(logging.handlers.QueueHandler):
    """Thread-safe sender of messages, and logging handler, that writes to the study's process."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__(cast(Any, pipe))
        self._pipe, self._lock = pipe, threading.Lock()

    def send(self, *message: Any) -> None:
        with self._lock:
            self._pipe.send(message)

    def enqueue(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            self.send("log", record)


class _SentProgress:
    """Forward all progress callbacks to the study's process, but steps and counts at most every `_STEP_SECONDS`."""

    def __init__(self, channel: _Channel) -> None:
        self._channel, self._next_step = channel, 0.0

    def __getattr__(self, callback: str) -> Callable[..., None]:
        def send(*args: Any, **kwargs: Any) -> None:
            now = time.monotonic()
            often = callback == "on_step" or (callback == "on_count" and 0 < args[1] < args[2])
            if often and now < self._next_step:
                return
            self._next_step = now + _STEP_SECONDS
            with suppress(OSError):
                self._channel.send("progress", callback, args, kwargs)

        return send


def _interrupt_at_end_of(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, signal.SIGTERM)  # also interrupts a system call of the main thread
    else:  # pragma: no cover -- Windows
        signal.raise_signal(signal.SIGTERM)
