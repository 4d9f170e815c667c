"""The package's command line in a separate process with captured output, in which faults can be caused.

Processes are forked from a process that has imported everything, so each starts in 0.1 seconds instead of 5.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from proof.faults.harm import Harm

forkserver = multiprocessing.get_context("forkserver")
forkserver.set_forkserver_preload(["proof.faults.imports"])


@dataclass(frozen=True)
class Ended:
    """End of a process: exit code (negative: the signal), output, and seconds."""

    code: int
    text: str
    seconds: float

    @property
    def plain(self) -> str:
        """The output on one line."""
        return re.sub(r"\s+", " ", self.text)

    def __str__(self) -> str:
        return f"ended by {signal.Signals(-self.code).name}" if self.code < 0 else f"exit {self.code}"


def left(processes: Sequence[psutil.Process], *, within: float = 10.0) -> list[psutil.Process]:
    """Return the processes that are still running after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        found = [each for each in processes if each.is_running() and _status(each) != psutil.STATUS_ZOMBIE]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:  # gone in between
        return str(psutil.STATUS_ZOMBIE)


class Running:
    """A running `attngraft` command with these arguments."""

    def __init__(
        self, arguments: Sequence[str], *, harms: Sequence[Harm] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        ours, theirs = forkserver.Pipe(duplex=False)
        self._process = forkserver.Process(
            target=_main, args=(list(arguments), list(harms), dict(environment or {}), theirs)
        )
        self._begun = time.monotonic()
        self._process.start()
        theirs.close()
        self._said = bytearray()
        self._listener = threading.Thread(target=self._listen, args=(ours,), daemon=True)
        self._listener.start()

    def reach(self, place: Path, *, within: float = 60.0) -> None:
        """Wait until the process has created `place` (`harm.Stand`)."""
        deadline = time.monotonic() + within
        while not place.exists():
            if not self._process.is_alive() or time.monotonic() > deadline:
                raise AssertionError(f"the process did not create {place.name}: {self.finish(within=1)}")
            time.sleep(0.005)

    def offspring(self) -> list[psutil.Process]:
        """Return all descendants of the process."""
        return list(psutil.Process(self._process.pid).children(recursive=True))

    def send(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def stop(self, number: int, *, grace: float = 10.0) -> Ended:
        """Send the signal, and SIGKILL after `grace` seconds, like a cluster's scheduler. Restarts the clock."""
        self._begun = time.monotonic()
        self.send(number)
        self._process.join(grace)
        if self._process.is_alive():
            self._process.kill()
        return self.finish()

    def finish(self, *, within: float = 180.0) -> Ended:
        """Wait until the process ends, and return its exit code, output and duration."""
        self._process.join(within)
        seconds = time.monotonic() - self._begun
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
            raise AssertionError(f"the process hangs; its output: {self._said.decode(errors='replace')[-2000:]}")
        self._listener.join(1.0)  # a loading process that outlives the command keeps the pipe open for a while
        code = self._process.exitcode
        assert code is not None
        return Ended(code, self._said.decode(errors="replace"), seconds)

    def _listen(self, connection: Connection) -> None:
        while True:
            try:
                part = os.read(connection.fileno(), 65536)
            except OSError:
                return
            if not part:
                return
            self._said += part


def _main(arguments: list[str], harms: list[Harm], environment: dict[str, str], output: Connection) -> None:
    """Run the command in the new process."""
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process started in the background ignores it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # likewise under nohup
    multiprocessing.set_start_method("fork", force=True)  # for loading processes; else they would inherit forkserver
    sys.argv = ["attngraft", *arguments]
    import torch

    from attngraft.cli import main

    torch.set_num_threads(1)
    for harm in harms:
        harm.apply()
    main(arguments)
