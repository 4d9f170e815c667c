"""The other side of `processes`: a process that does one piece of work after the other, and tells how it gets on.

Two things end it: the word to stop, or the end of whoever gave it work, which it sees as the end of the pipe. In both
cases the run at work saves itself first.
"""

from __future__ import annotations

import logging
import logging.handlers
import queue
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from attngraft.leaving import leave_now
from attngraft.study.executors.placement import Place
from attngraft.study.executors.signals import interrupt
from attngraft.study.executors.trial import PATIENCE, carry_out
from attngraft.study.executors.work import Train, Work

STOP = "stop"
_TELL_EVERY = 0.25  #: seconds between two messages about steps


def main(connection: Connection, train: Train, place: Place, verbosity: int) -> NoReturn:
    """Work off what comes through `connection`: `Work`, `STOP`, or None for the end of the day.

    What goes back: ("ready",), ("progress", method, args, kwargs), ("log", record), ("outcome", outcome).
    """
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal's Ctrl-C reaches everybody; who gave the work passes it on
    signal.signal(signal.SIGTERM, interrupt)
    place.take()
    line = _Line(connection)
    _log_through(line, verbosity)
    inbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
    stopping = threading.Event()
    threading.Thread(target=_listen, args=(connection, inbox, stopping), daemon=True).start()
    try:
        line.send("ready")
        while (work := inbox.get()) is not None and not stopping.is_set():
            outcome = carry_out(work, train, _Told(line), patience=PATIENCE)
            line.send("outcome", outcome)
            if outcome.kind == "stopped":
                break  # whoever asked this process to stop did not mean one run
    except KeyboardInterrupt:
        pass  # asked to stop between two runs
    except OSError:
        pass  # nobody is there to be told any more; the run is saved
    leave_now(0)  # who asked to stop waits for this process, and may not be given long


class _Line:
    """Sends messages, from any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def send(self, *message: Any) -> None:
        with self._lock:
            self._connection.send(message)


class _Told:
    """A run's progress, told through the pipe. Losing the other side is no reason to fail."""

    def __init__(self, line: _Line) -> None:
        self._line = line
        self._next = 0.0

    def on_start(self, total_steps: int, *, done_steps: int, epochs: int, steps_per_epoch: int) -> None:
        self._tell("on_start", total_steps, done_steps=done_steps, epochs=epochs, steps_per_epoch=steps_per_epoch)

    def on_step(self, *, step: int, epoch: int, loss: float, lr: float) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _TELL_EVERY
            self._tell("on_step", step=step, epoch=epoch, loss=loss, lr=lr)

    def on_epoch(self, metrics: Mapping[str, float]) -> None:
        self._tell("on_epoch", dict(metrics))

    def on_end(self, *, finished: bool) -> None:
        self._tell("on_end", finished=finished)

    def _tell(self, method: str, *args: Any, **kwargs: Any) -> None:
        try:
            self._line.send("progress", method, args, kwargs)
        except OSError:
            self._next = float("inf")


class _Records(logging.handlers.QueueHandler):
    """Sends log records through the pipe, made ready for it as for any queue."""

    def __init__(self, line: _Line) -> None:
        super().__init__(queue.SimpleQueue())
        self._line = line

    def enqueue(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            self._line.send("log", record)


def _log_through(line: _Line, verbosity: int) -> None:
    """Log records and warnings of this process go to who gave the work."""
    root = logging.getLogger()
    root.handlers[:] = [_Records(line)]
    logging.getLogger("attngraft").setLevel(verbosity)
    logging.captureWarnings(True)


def _listen(connection: Connection, inbox: queue.SimpleQueue[Work | None], stopping: threading.Event) -> None:
    """Pass work on; at the word to stop, or at the end of the pipe, interrupt the run at work."""
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            message = STOP
        if message != STOP:
            inbox.put(message)
            if message is None:
                return
            continue
        stopping.set()
        inbox.put(None)
        _interrupt_main()
        return


def _interrupt_main() -> None:
    if hasattr(signal, "pthread_kill"):
        main_thread = threading.main_thread().ident
        if main_thread is not None:
            signal.pthread_kill(main_thread, signal.SIGTERM)  # also wakes a call that waits
    else:  # pragma: no cover -- Windows
        signal.raise_signal(signal.SIGTERM)
