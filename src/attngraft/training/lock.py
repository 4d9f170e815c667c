"""One process per run folder. The operating system releases the lock when its holder dies, however it dies.

Some network file systems have no such locks. There the note in the lock file decides, which names process and host.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from attngraft.errors import StorageError, TrainingError

log = logging.getLogger(__name__)


class FolderBusy(TrainingError):
    """Somebody else is at work in the folder."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock, or held it and died."""

    process: int
    host: str

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    def __str__(self) -> str:
        return f"process {self.process} on {'this machine' if self.is_here else 'host'} {self.host}"


_held: set[Path] = set()  # a record lock does not keep its own process out; this does


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`, a file named `.lock` in it.

    A lock that its holder could not give back, because it was killed, is taken over; where that was on another host, a
    warning says so.

    Raises:
        FolderBusy: another process, or another run of this process, holds it; names process and host.
        StorageError: the folder cannot be written.
    """
    path = folder.resolve() / ".lock"
    if path in _held:
        raise _busy(folder, Holder(os.getpid(), socket.gethostname()))
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        remedy = f"make {folder} writable, or choose another folder"
        raise StorageError(f"{path}: cannot be opened: {error.strerror}; {remedy}") from None
    try:
        _take_over(folder, descriptor, path)
        _held.add(path)
        try:
            _note(descriptor, json.dumps(asdict(Holder(os.getpid(), socket.gethostname()))) + "\n")
            yield
        finally:
            _held.discard(path)
            _note(descriptor, "")
    finally:
        os.close(descriptor)


def _take_over(folder: Path, descriptor: int, path: Path) -> None:
    """Take the lock, or say who has it."""
    taken = _take(descriptor)
    before = _read(descriptor)
    if taken == "busy":
        raise _busy(folder, before)
    if before is None:
        return
    if taken == "unknown" and before.is_here and _is_alive(before.process):
        raise _busy(folder, before)
    if taken == "unknown" and not before.is_here:
        raise FolderBusy(
            f"{folder}: {before} was at work in this folder, and this file system has no locks that would tell whether "
            f"it still is; if it is not, delete {path}"
        )
    if not before.is_here:
        log.warning("%s: taken over from %s, which ended without giving it back", folder, before)


def _busy(folder: Path, holder: Holder | None) -> FolderBusy:
    return FolderBusy(
        f"{folder}: another run is at work in this folder ({holder or 'process unknown'}); "
        "wait for it, stop it, or choose another folder"
    )


def _read(descriptor: int) -> Holder | None:
    """Who wrote the note; None where there is none, or none that can be read."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        os.lseek(descriptor, 0, os.SEEK_SET)
        content = json.loads(os.read(descriptor, 4096))
        return Holder(int(content["process"]), str(content["host"]))
    return None


def _note(descriptor: int, text: str) -> None:
    """Write the note. The lock holds without it, so a full disk is no reason to fail here."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, text.encode())


def _is_alive(process: int) -> bool:
    if os.name == "nt":  # pragma: no cover -- signal 0 ends processes on Windows
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


Taken = Literal["taken", "busy", "unknown"]

if os.name == "nt":  # pragma: no cover -- Windows
    import msvcrt

    def _take(descriptor: int) -> Taken:
        """Lock one byte far behind the text, so that the text stays readable."""
        try:
            os.lseek(descriptor, 1 << 30, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
            os.lseek(descriptor, 0, os.SEEK_SET)
        except OSError:
            return "busy"
        return "taken"

else:
    import fcntl

    def _take(descriptor: int) -> Taken:
        """A record lock: unlike flock's it is not inherited by loading processes, which may outlive a killed trainer."""
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return "busy" if error.errno in (errno.EACCES, errno.EAGAIN) else "unknown"
        return "taken"
