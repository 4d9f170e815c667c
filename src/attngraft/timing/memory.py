"""Memory of this process: growth during a call, growth limit, and tensor storages."""

import ctypes
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attngraft.timing.macs import storage_key

_PROCESS = Path("/proc/self")


def growth(work: Callable[[], object], *, clock: Callable[[], float] = time.perf_counter) -> tuple[int | None, float]:
    """Call `work`; return the growth of resident memory up to its peak, in bytes, and the seconds of `clock`.

    Freed memory is first returned to the system (needs glibc), since its reuse would not be counted, and the peak is reset
    (needs Linux). On other systems, measure the first call of a new process. The growth is None if the system does not
    report it.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5")  # resets the peak on Linux
    before, start = peak_memory(), clock()
    work()
    seconds, after = clock() - start, peak_memory()
    return (None if before is None or after is None else after - before), seconds


def in_fresh_process(script: str, *what: str, threads: int) -> int:
    """Run `script --threads N --bytes-here WHAT` in a new process; return the printed bytes.

    The allocator of the new process returns freed memory to the system.
    """
    command = [sys.executable, script, "--threads", str(threads), "--bytes-here", *what]
    environment = os.environ | {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout)


@contextmanager
def address_space_limited(more: int | None) -> Iterator[None]:
    """Limit the growth of the address space in the block to `more` bytes, if supported; None: no limit."""
    size = _address_space()
    if more is None or size is None:
        yield
        return
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = size + more if soft == resource.RLIM_INFINITY else min(soft, size + more)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def free_memory() -> int | None:
    """Return the bytes available without swapping; None if the system does not report them."""
    return _kilobytes(Path("/proc/meminfo"), "MemAvailable:")


def free_on(device: torch.device) -> int | None:
    """Return the free bytes of a device's memory; None if it does not report them."""
    if device.type == "cpu":
        return free_memory()
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def peak_memory() -> int | None:
    """Return the peak of this process's resident memory in bytes; None if the system does not report it."""
    found = _kilobytes(_PROCESS / "status", "VmHWM:")
    if found is not None:
        return found
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _address_space() -> int | None:
    try:
        return int((_PROCESS / "statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _kilobytes(file: Path, name: str) -> int | None:
    """Return the value of the line `name   123 kB` of a system file, in bytes."""
    with suppress(OSError):
        for line in file.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return None


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the tensors' storages; shared storages count once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def peak_bytes(work: Callable[[], object], device: torch.device, *, kept: Iterable[torch.Tensor]) -> int:
    """Return the peak memory of `work` in bytes: the tensors `kept` plus new allocations on the device."""
    state = storage_bytes(kept)
    if device.type == "cpu":
        with LiveStorages() as storages:
            work()
        return state + storages.peak
    # torch before 2.9 counts the memory in modules of its devices
    newer = hasattr(torch.accelerator, "memory_allocated")
    counts: Any = torch.accelerator if newer else torch.get_device_module(device)
    torch.accelerator.synchronize()
    counts.reset_peak_memory_stats()
    before = counts.memory_allocated()
    work()
    torch.accelerator.synchronize()
    return state + counts.max_memory_allocated() - before


class LiveStorages(TorchDispatchMode):
    """Count the bytes of live tensor storages that were created while active; `peak` is the maximum.

    This measures the peak memory of a training step on the CPU, where resident memory depends more on libraries and malloc
    than on the model. Memory that a kernel uses internally is not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {storage_key(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if (
                isinstance(leaf, torch.Tensor)
                and storage_key(leaf) not in inputs
                and storage_key(leaf) not in self._known
            ):
                self._follow(leaf.untyped_storage())
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()

        def freed(_: object) -> None:
            self._known.pop(key, None)
            self.live -= size

        self._known[key] = weakref.ref(storage, freed)
        self.live += size
        self.peak = max(self.peak, self.live)
