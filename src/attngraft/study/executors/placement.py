"""Placement of several processes on one machine: device, cores, and number of threads.

A run's number of threads is part of its recipe, because the order of summation, and thus the last digits, depend on it. Each
concurrent run therefore uses as many threads as it would alone. If the recipe does not set `train.threads`, every process
uses torch's default for the whole machine: the results are the same, but the processes compete for the cores.
`train.threads=1` gives each run its own core.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attngraft.devices import accelerator_device
from attngraft.training.recipe import Recipe

CONTENTION = 1.25  #: factor by which concurrent runs slow each other down, even on separate cores


@dataclass(frozen=True, kw_only=True)
class ProcessPlacement:
    """Device, cores and threads of one worker."""

    threads: int  #: number of torch's CPU threads: the recipe's or, if unset, torch's default
    cores: tuple[int, ...] = ()  #: cores that the worker may use; empty: all
    device: str | None = None  #: value of CUDA_VISIBLE_DEVICES; None: unchanged

    def apply(self) -> None:
        """Bind this process to its device and cores. Must be called before any computation."""
        if self.device is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.device  # read when CUDA is first used
        if self.cores:
            os.sched_setaffinity(0, self.cores)
        torch.set_num_threads(self.threads)


def run_threads(recipe: Recipe) -> int:
    """Return the number of CPU threads that a run of `recipe` uses in this process."""
    return recipe.train.threads or torch.get_num_threads()


def placements(jobs: int, recipe: Recipe) -> list[ProcessPlacement]:
    """Return a placement for each of `jobs` processes.

    Devices are assigned round-robin. Without devices, each process gets an equal share of the cores, if a run's threads fit
    into a share; otherwise all processes use all cores.
    """
    threads, devices = run_threads(recipe), _devices()
    if devices:
        return [ProcessPlacement(threads=threads, device=devices[number % len(devices)]) for number in range(jobs)]
    cores = _cores()
    share = len(cores) // jobs
    if threads > share or not hasattr(os, "sched_setaffinity"):
        return [ProcessPlacement(threads=threads)] * jobs
    return [ProcessPlacement(threads=threads, cores=tuple(cores[n * share : (n + 1) * share])) for n in range(jobs)]


def concurrent_runs(jobs: int, recipe: Recipe) -> int:
    """Return how many of `jobs` processes fit without sharing devices or cores; at least 1."""
    room = len(_devices()) or len(_cores()) // run_threads(recipe)
    return max(min(jobs, room), 1)


def available_cores() -> int:
    """Return the number of cores that this process may use, by its affinity and a container's quota."""
    from joblib import cpu_count  # here: imports multiprocessing's managers

    return int(cpu_count())


def _cores() -> Sequence[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return range(os.cpu_count() or 1)


def _devices() -> list[str]:
    """Return the value of CUDA_VISIBLE_DEVICES that selects each visible device; empty without CUDA."""
    if accelerator_device() is None or not torch.cuda.is_available():
        return []
    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if len(named) >= count else [str(number) for number in range(count)]
