"""Writing files so that a reader, or a crash, never meets half of one."""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from attngraft.errors import StorageError

_OURS = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.tmp")  #: names of unfinished files
_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def write_atomically(path: Path, content: bytes | str) -> Path:
    """Write `content` under `path`: a temporary file in the same folder, flushed to disk, then renamed.

    Raises:
        StorageError: the folder cannot be made or written; what stood at `path` is untouched. Names the file, the room
            that is left, and the remedy.
    """
    with atomic_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return path


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """The same for who writes piece by piece: a file that takes its place at `path` when the block ends without error.

    Raises:
        StorageError: as `write_atomically`. Errors of the block itself come through as they are.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    raw, in_block = None, False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = _Recorder(temporary, "xb")
        with io.BufferedWriter(raw) as file:
            in_block = True
            yield file
            in_block = False
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        size = _remove(temporary)
        failed = raw.failed if raw is not None else None
        if failed is None and isinstance(error, OSError) and not in_block:
            failed = error
        if failed is None:
            raise
        raise StorageError(_in_words(path, failed, size)) from failed
    _sync_folder(path.parent)


def share(path: Path, at: Path) -> None:
    """Let the file at `path` stand under `at`, too: the same file where the disk can do that, else a copy. Neither is ever
    written to: who changes one puts a new file in its place.

    Raises:
        StorageError: as `write_atomically`.
    """
    temporary = at.with_name(f".{at.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        at.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, temporary)
        os.replace(temporary, at)
    except OSError:
        temporary.unlink(missing_ok=True)
        write_atomically(at, path.read_bytes())


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """For who writes in another way (appends, makes folders): what the system refuses comes as a StorageError."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(_in_words(path, error, 0)) from error


class _Recorder(io.FileIO):
    """A file that remembers why a write failed: `torch.save` puts an error of its own in its place."""

    failed: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failed = error
            raise


def _remove(temporary: Path) -> int:
    """Delete the unfinished file, which gives its room back; how large it was."""
    try:
        size = temporary.stat().st_size
        temporary.unlink(missing_ok=True)
    except OSError:
        return 0
    return size


def _in_words(path: Path, failed: OSError, size: int) -> str:
    """What could not be written, why, and what to do."""
    kept = "what was saved before is whole"
    if failed.errno not in _NO_ROOM:
        return (
            f"{path}: cannot be written: {failed.strerror}; make {path.parent} writable and repeat the command: {kept}"
        )
    if failed.errno == errno.EFBIG:
        reason = f"the file would be larger than this process may write ({shown_size(size)} were written)"
        remedy = "raise the limit (ulimit -f)"
    else:
        reason = f"the disk is full ({_room(path.parent)}; {shown_size(size)} were written)"
        if failed.errno == errno.EDQUOT:
            reason = f"your quota on this disk is used up ({shown_size(size)} were written)"
        remedy = "make room"
    return f"{path}: cannot be written: {reason}; {remedy} and repeat the command, which goes on: {kept}"


def _room(folder: Path) -> str:
    """What is left on the disk of `folder`, now that the unfinished file is gone."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        free = shutil.disk_usage(folder).free
        names = os.statvfs(folder).f_favail if hasattr(os, "statvfs") else 1
    except OSError:
        return "room unknown"
    return f"{shown_size(free)} free on that of {folder}" + ("" if names else ", and no room for another file's name")


def shown_size(size: float) -> str:
    """`1.3 MB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def remove_leftovers(folder: Path, *, below: bool = True) -> None:
    """Delete the temporary files of writers that were killed; only where nobody else writes into `folder`, and with
    `below` into the folders in it. Files that only look similar stay: the folder may hold other things."""
    for path in folder.glob("**/.*.tmp" if below else ".*.tmp"):
        if _OURS.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the renaming itself durable, where the system lets a folder be opened."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
