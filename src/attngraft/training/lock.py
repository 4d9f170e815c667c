"""One process per run folder. The operating system releases the lock when its holder dies, however it dies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attngraft.errors import TrainingError


class FolderBusy(TrainingError):
    """Somebody else is at work in the folder."""


_held: set[Path] = set()  # a record lock does not keep its own process out; this does


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`, a file named `.lock` in it.

    Raises:
        FolderBusy: another process, or another run of this process, holds it; names its process id.
    """
    path = folder.resolve() / ".lock"
    descriptor = None if path in _held else os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    if descriptor is None or not _take(descriptor):
        holder = path.read_text(errors="replace").strip() if path not in _held else str(os.getpid())
        if descriptor is not None:
            os.close(descriptor)
        raise FolderBusy(
            f"{folder}: another run is at work in this folder (process {holder or 'unknown'}); "
            "wait for it, stop it, or choose another folder"
        )
    _held.add(path)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        _held.discard(path)
        os.close(descriptor)


if os.name == "nt":  # pragma: no cover -- Windows
    import msvcrt

    def _take(descriptor: int) -> bool:
        """Lock one byte far behind the text, so that the text stays readable."""
        try:
            os.lseek(descriptor, 1 << 30, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
            os.lseek(descriptor, 0, os.SEEK_SET)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _take(descriptor: int) -> bool:
        """A record lock: unlike flock's it is not inherited by loading processes, which may outlive a killed trainer."""
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
