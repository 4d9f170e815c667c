"""One piece of work done, in whatever process that is: an outcome, never an exception."""

from __future__ import annotations

import time
import traceback
from typing import TYPE_CHECKING, Any

from attngraft.errors import AttngraftError
from attngraft.files import write_atomically
from attngraft.study.executors.work import Outcome, Train, Work

if TYPE_CHECKING:
    from attngraft.training.progress import Progress

FAILURE_FILE = "failure.txt"
PATIENCE = 60.0  #: seconds that a worker waits for a predecessor that is still saving the same run


def carry_out(work: Work, train: Train, progress: Progress, *, patience: float = 0.0) -> Outcome:
    """Make the run, go on with it, or see that it is finished; a failure's traceback is left in the run's folder.

    Args:
        work: what to do.
        train: the trainer.
        progress: told how it gets on.
        patience: seconds to wait for another process that holds the run's folder.
    """
    from attngraft.study.progress import first_metric

    failure = work.run.folder / FAILURE_FILE
    try:
        record = _when_free(work, train, progress, patience)
    except KeyboardInterrupt as stop:
        return Outcome(kind="stopped", message=str(stop))
    except Exception as error:  # the other runs must not be lost with this one
        message = str(error) if isinstance(error, AttngraftError) else f"{type(error).__name__}: {error}"
        return Outcome(kind="failed", message=_with_traceback(message, failure))
    failure.unlink(missing_ok=True)
    metric = first_metric(record.epochs[-1]) if record.epochs else ""
    return Outcome(kind="finished" if record.finished else "paused", message=metric)


def _when_free(work: Work, train: Train, progress: Progress, patience: float) -> Any:
    """Train as soon as nobody else is at work in the run's folder."""
    from attngraft.training.lock import FolderBusy

    run, until = work.run, {} if work.until is None else {"stop_after_epoch": work.until}
    deadline = time.monotonic() + patience
    while True:
        try:
            return train(run.recipe, run.folder, resume=True, progress=progress, **until)
        except FolderBusy:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.2)


def _with_traceback(message: str, failure: Any) -> str:
    """`message` and where the traceback is, if it could be written: a full disk may be the very reason."""
    try:
        write_atomically(failure, traceback.format_exc())
    except OSError:
        return message
    return f"{message} (traceback: {failure})"
