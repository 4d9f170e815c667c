"""Resident memory of this process: how far a call lets it grow, and a limit to it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PROCESS = Path("/proc/self")


def growth(work: Callable[[], object], *, clock: Callable[[], float] = time.perf_counter) -> tuple[int | None, float]:
    """By how many bytes the resident memory grew to its peak in `work`, and its seconds by `clock`.

    What earlier calls freed the allocator first gives back to the system; it would be used again without being seen. Not
    every allocator does that (glibc's does), and none but Linux forgets an earlier peak: elsewhere measure the first call of
    a fresh process. None where the system does not count.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5")  # Linux counts the peak anew from here
    before, start = _peak(), clock()
    work()
    seconds, after = clock() - start, _peak()
    return (None if before is None or after is None else after - before), seconds


def in_fresh_process(script: str, *what: str, threads: int) -> int:
    """The number of bytes that `script --threads N --bytes-here WHAT` prints, in a process whose allocator gives back what
    is freed."""
    command = [sys.executable, script, "--threads", str(threads), "--bytes-here", *what]
    environment = os.environ | {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout)


@contextmanager
def address_space_limited(more: int | None) -> Iterator[None]:
    """Inside, memory beyond `more` bytes from now on is refused, where the system can do that; None is no limit."""
    size = _address_space()
    if more is None or size is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = size + more if soft == resource.RLIM_INFINITY else min(soft, size + more)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def free_memory() -> int | None:
    """Bytes that processes can still get without swapping; None where the system does not say."""
    return _kilobytes(Path("/proc/meminfo"), "MemAvailable:")


def _peak() -> int | None:
    """Bytes of resident memory at their peak."""
    found = _kilobytes(_PROCESS / "status", "VmHWM:")
    if found is not None:
        return found
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _address_space() -> int | None:
    try:
        return int((_PROCESS / "statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _kilobytes(file: Path, name: str) -> int | None:
    """A line `name   123 kB` of a file of the system, in bytes."""
    with suppress(OSError):
        for line in file.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return None
