"""Tasks, their outcomes, and the interface of executors."""

import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol

from attngraft.cache import DecodedCache
from attngraft.downloads import Permitted
from attngraft.errors import AttngraftError
from attngraft.files import write_atomically
from attngraft.study.plan import PlannedRun
from attngraft.study.progress import first_metric
from attngraft.suggest import one_line
from attngraft.training.lock import FolderBusy
from attngraft.training.progress import Progress
from attngraft.training.recipe import Recipe
from attngraft.training.run_folder import RunRecord

FAILURE_FILE = "failure.txt"
PATIENCE = 60.0  #: seconds that a worker waits for another process that is still saving the same run


class TrainRun(Protocol):
    """Training function of one run: `attngraft.training.loop.train`, or a replacement.

    `stop_after_epoch`, `trust_code` and `downloads` are passed only if they differ from their defaults, and `cache` only if
    the task can keep decoded examples.
    """

    def __call__(
        self,
        recipe: Recipe,
        folder: Path,
        /,
        *,
        resume: bool,
        progress: Progress,
        stop_after_epoch: int | None = None,
        trust_code: bool = False,
        downloads: Permitted = None,
        cache: DecodedCache | str = "auto",
    ) -> RunRecord: ...


@dataclass(frozen=True, kw_only=True)
class RunTask:
    """A run to train, either to completion or until `stop_after_epoch`."""

    run: PlannedRun
    stop_after_epoch: int | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a task.

    `paused`: trained to the requested epoch; `stopped`: interrupted; `lost`: its process died.
    """

    kind: Literal["finished", "paused", "failed", "stopped", "lost"]
    message: str = ""  #: the last epoch's first metric, the reason of the failure, or how the process ended


class Pool(Protocol):
    """Pool of workers. `wait` returns every submitted task exactly once, unless `stop` is called first."""

    @property
    def slots(self) -> int:
        """Maximum number of submitted tasks at a time."""

    def submit(self, task: RunTask, progress: Progress) -> None:
        """Start a task, now or in the next `wait`; the callbacks of `progress` are called during `wait`."""

    def wait(self) -> Sequence[tuple[RunTask, Outcome]]:
        """Wait until at least one task has ended, and return the ended tasks with their outcomes."""

    def stop(self) -> None:
        """Interrupt all runs and wait until they are saved."""


class Executor(Protocol):
    """Interface of executors, which open pools of workers."""

    @property
    def retries(self) -> int:
        """Maximum number of times that a run is resumed after its process died."""

    def concurrency(self, recipe: Recipe) -> int:
        """Return how many runs can be trained at full speed at the same time, for time estimates."""

    def pool(self, *, train_run: TrainRun, recipe: Recipe, out: Path) -> AbstractContextManager[Pool]:
        """Open workers for the runs of a study.

        Args:
            train_run: the training function; must be picklable if tasks leave this process.
            recipe: the recipe of any run; threads and loading processes are equal for all runs of a study.
            out: the study's folder.
        """


def run_task(task: RunTask, train_run: TrainRun, progress: Progress, *, patience: float = 0.0) -> Outcome:
    """Train the task's run and return its outcome; if it fails, write the traceback to the run's folder.

    Args:
        task: the run to train. A started run is resumed, and a finished run is skipped.
        train_run: the training function.
        progress: callbacks.
        patience: seconds to wait for another process that has locked the run's folder.
    """
    run = task.run
    options: dict[str, Any] = {} if task.stop_after_epoch is None else {"stop_after_epoch": task.stop_after_epoch}
    failure = run.folder / FAILURE_FILE
    deadline = time.monotonic() + patience
    try:
        while True:
            try:
                record = train_run(run.recipe, run.folder, resume=True, progress=progress, **options)
                break
            except FolderBusy:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(0.2)
    except KeyboardInterrupt as stop:
        return Outcome(kind="stopped", message=str(stop))
    except Exception as error:  # one failed run must not end the others
        message = str(error) if isinstance(error, AttngraftError) else one_line(error)
        try:
            write_atomically(failure, traceback.format_exc())
        except OSError:  # a full disk may have caused the failure
            return Outcome(kind="failed", message=message)
        return Outcome(kind="failed", message=f"{message} (traceback: {failure})")
    failure.unlink(missing_ok=True)
    metric = first_metric(record.epochs[-1]) if record.epochs else ""
    return Outcome(kind="finished" if record.finished else "paused", message=metric)


@dataclass(frozen=True)
class Serial:
    """Train runs sequentially in this process (the default)."""

    retries: int = 0

    def concurrency(self, recipe: Recipe) -> int:
        return 1

    @contextmanager
    def pool(self, *, train_run: TrainRun, recipe: Recipe, out: Path) -> Iterator[Pool]:
        yield _SerialPool(train_run)


class _SerialPool:
    """Pool without workers: `submit` only stores the task, and `wait` trains it in this process."""

    slots = 1

    def __init__(self, train_run: TrainRun) -> None:
        self._train_run = train_run
        self._submitted: list[tuple[RunTask, Progress]] = []

    def submit(self, task: RunTask, progress: Progress) -> None:
        self._submitted.append((task, progress))

    def wait(self) -> Sequence[tuple[RunTask, Outcome]]:
        task, progress = self._submitted.pop()
        return [(task, run_task(task, self._train_run, progress))]

    def stop(self) -> None:
        pass  # an interrupted run has already saved its state


def raise_interrupt(number: int, frame: FrameType | None) -> None:
    """Signal handler that raises KeyboardInterrupt, as SIGINT does by default."""
    raise KeyboardInterrupt


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM within the block, so that child processes can be stopped.

    Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, raise_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
