"""Lock that allows one process per run folder.

The operating system releases the lock when its holder dies, for any reason. On network file systems without locks, the
process and host recorded in the lock file are checked instead.
"""

import errno
import json
import logging
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from attngraft.errors import FolderError, TrainingError
from attngraft.files import open_in_place
from attngraft.training.run_folder import refuse_special_files

log = logging.getLogger(__name__)

_NOTE = 4096  #: largest number of bytes that are read from a lock
_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


class FolderBusy(TrainingError):
    """Another process is using the folder."""


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock, or died while holding it."""

    process: int
    host: str

    @property
    def is_local(self) -> bool:
        return self.host == socket.gethostname()

    def __str__(self) -> str:
        return f"process {self.process} on {'this machine' if self.is_local else 'host'} {self.host}"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`, a file named `.lock` in it.

    A lock left by a killed process is taken over, with a warning if the process was on another host. If the block raises an
    error and the folder contains no other file, the lock file is removed.

    Raises:
        FolderBusy: another process, or another run of this process, holds the lock; the message names process and host.
        FolderError: the folder cannot be written.
    """
    path = folder.resolve() / ".lock"
    _refuse_other(path)
    previous = _read_note(path)  # before acquiring the lock, which may empty the file
    lock = FileLock(path, fallback_to_soft=False)
    result = _acquire(lock)
    if result == "busy":
        previous = _read_note(path)
    alive = previous is not None and previous.is_local and _is_alive(previous.process)
    if result == "busy" or (result == "unsupported" and alive):
        raise FolderBusy(
            f"{folder}: another run is using this folder ({previous or 'process unknown'}); "
            "wait for it, stop it, or choose another folder"
        )
    if previous is not None and not previous.is_local:
        if result == "unsupported":
            raise FolderBusy(
                f"{folder}: {previous} was using this folder, and may still be, because this file system has no locks; "
                f"if the process has ended, delete {path}"
            )
        log.warning("%s: lock taken over from %s, which ended without releasing it", folder, previous)
    try:
        _write_note(path, json.dumps(asdict(Holder(os.getpid(), socket.gethostname()))) + "\n")
        yield
    except BaseException:
        with suppress(OSError):
            if os.listdir(path.parent) == [path.name]:
                path.unlink()  # before the release, so that another process cannot acquire the deleted file
        raise
    finally:
        if path.exists():
            _write_note(path, "")
        lock.release()


def _refuse_other(path: Path) -> None:
    """Refuse a lock that is a link, whose target would be emptied, and a folder with a FIFO or a device."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise FolderError(f"{path}: is not a regular file, so it is no lock; delete it")
    refuse_special_files(path.parent)


def _acquire(lock: FileLock) -> Literal["acquired", "busy", "unsupported"]:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return "busy"
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return "unsupported"
        path = Path(lock.lock_file)
        raise FolderError(
            f"{path}: cannot be opened: {error.strerror}; make {path.parent} writable, or choose another folder"
        ) from None
    return "acquired"


def _read_note(path: Path) -> Holder | None:
    with suppress(OSError, ValueError, TypeError, KeyError):
        with open_in_place(path, os.O_RDONLY) as file:
            note = json.loads(file.read(_NOTE))
        return Holder(int(note["process"]), str(note["host"]))
    return None


def _write_note(path: Path, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with suppress(OSError), open_in_place(path, flags) as file:  # the lock works without the note, on a full disk too
        file.write(text.encode())


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
