"""Where each of several processes on one machine runs: its device or its cores, and how many threads it has.

The threads of a run are part of its recipe: sums in another number of threads are sums in another order, which changes
the last digits. So several runs at a time have exactly the threads that one run alone would have. Where the recipe leaves
`train.threads` to torch, that is torch's own choice for the whole machine, in every process: same results, but the
processes then share the cores. `train.threads=1` gives each run its own core.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attngraft.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one worker runs."""

    threads: int  #: CPU threads of torch, where the recipe does not say it
    cores: tuple[int, ...] = ()  #: the cores that it may use; none: all
    device: str | None = None  #: what CUDA_VISIBLE_DEVICES is set to; None: left as it is

    def take(self) -> None:
        """Bind this process. Must come before anything is computed in it."""
        import torch

        if self.device is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.device  # read when CUDA is first used
        if self.cores:
            os.sched_setaffinity(0, self.cores)
        torch.set_num_threads(self.threads)


def threads_of_a_run(recipe: Recipe) -> int:
    """The CPU threads that a run of `recipe` has in this process."""
    import torch

    return recipe.train.threads or torch.get_num_threads()


def places(jobs: int, recipe: Recipe) -> list[Place]:
    """A place for each of `jobs` processes: devices in turn; without any, an equal share of the cores if a run fits."""
    threads, devices = threads_of_a_run(recipe), _devices()
    if devices:
        return [Place(threads=threads, device=devices[number % len(devices)]) for number in range(jobs)]
    cores = _cores()
    share = len(cores) // jobs
    if threads > share or not hasattr(os, "sched_setaffinity"):
        return [Place(threads=threads) for _ in range(jobs)]
    return [Place(threads=threads, cores=tuple(cores[number * share : (number + 1) * share])) for number in range(jobs)]


def at_full_speed(jobs: int, recipe: Recipe) -> int:
    """How many of `jobs` processes have a device, or cores for all their threads, to themselves; at least 1."""
    devices = _devices()
    room = len(devices) if devices else len(_cores()) // threads_of_a_run(recipe)
    return max(min(jobs, room), 1)


def _cores() -> Sequence[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return range(os.cpu_count() or 1)


def _devices() -> list[str]:
    """What CUDA_VISIBLE_DEVICES must be for each device that this process sees; empty without CUDA."""
    import torch

    if not torch.cuda.is_available():
        return []
    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if len(named) >= count else [str(number) for number in range(count)]
