"""Which examples make which batch, and their loading.

A batch is a list of keys (epoch, index), so that a loading process knows the epoch of what it draws. The keys of all
batches, from any step on, follow from the seed: nothing of a DataLoader's own state is needed to go on in mid-epoch.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing import AuthenticationError
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from attngraft.errors import AttngraftError, ConfigError, TrainingError
from attngraft.tasks.task import Batch, Split
from attngraft.training.randomness import epoch_order
from attngraft.training.stopping import SIGNALS

Keys = list[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class TrainOrder:
    """The keys of every training batch of one process.

    Update `step` of an epoch takes the next `batch_size` examples of the epoch's order; the process of `rank` takes its
    contiguous share of them and cuts it into `accumulate` micro-batches. What is left at the end of an epoch, less than
    a batch, is not used in that epoch.
    """

    split: Split
    seed: int
    batch_size: int
    accumulate: int = 1
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.batch_size % (self.accumulate * self.world):
            raise ConfigError(
                f"train.batch_size {self.batch_size} cannot be shared by {self.world} processes with "
                f"train.accumulate {self.accumulate}: make it a multiple of {self.world * self.accumulate}"
            )
        if self.steps < 1:
            raise ConfigError(
                f"train.batch_size {self.batch_size} is more than an epoch's {self._examples} training examples: "
                f"use --set train.batch_size={self._examples} or less"
            )

    @cached_property
    def _examples(self) -> int:
        own = self.split.order(seed=self.seed, epoch=0)
        return len(self.split) if own is None else len(own)

    @property
    def steps(self) -> int:
        """Updates per epoch."""
        return self._examples // self.batch_size

    def order(self, epoch: int) -> np.ndarray:
        """Indices of the examples of `epoch`, in order: the split's own order if it has one, else a shuffle of all."""
        own = self.split.order(seed=self.seed, epoch=epoch)
        return epoch_order(self.seed, epoch, len(self.split)) if own is None else own

    def micro_batches(self, epoch: int, step: int, order: np.ndarray | None = None) -> list[Keys]:
        """The keys of this process's micro-batches of one update."""
        order = self.order(epoch) if order is None else order
        share = self.batch_size // self.world
        start = step * self.batch_size + self.rank * share
        size = share // self.accumulate
        keys = [(epoch, int(index)) for index in order[start : start + share]]
        return [keys[i : i + size] for i in range(0, share, size)]

    def stream(self, *, epoch: int, step: int, epochs: int) -> Iterator[Keys]:
        """The keys of all micro-batches from that update to the end of the last epoch."""
        for current in range(epoch, epochs):
            order = self.order(current)
            for at in range(step if current == epoch else 0, self.steps):
                yield from self.micro_batches(current, at, order)


class _From:
    """An iterator handed to a DataLoader as its batch sampler."""

    def __init__(self, keys: Iterator[Keys]) -> None:
        self._keys = keys

    def __iter__(self) -> Iterator[Keys]:
        return self._keys


@dataclass(frozen=True)
class _Failure:
    """An error of the data on its way out of a loading process. Torch would hand on its text alone, behind a traceback."""

    error: AttngraftError


class _Examples(Dataset[Any]):
    """A split whose errors are examples."""

    def __init__(self, split: Split) -> None:
        self._split = split

    def __getitem__(self, key: tuple[int, int]) -> Any:
        try:
            return self._split[key]
        except AttngraftError as error:
            return _Failure(error)

    def collate(self, examples: list[Any]) -> Any:
        failed = next((example for example in examples if isinstance(example, _Failure)), None)
        return self._split.collate(examples) if failed is None else failed


#: What a batch's reception raises where its sender died in the middle of it.
_CUT_OFF = (OSError, EOFError, AuthenticationError)


class _Raised:
    """Batches, with the errors among them raised.

    The sockets of a killed loading process close a moment before the system tells of its death. Torch names the death,
    from a signal handler, and `grace` is how long that may take, in seconds: in it the handler's error comes out of the
    sleep. If nothing died, the error was another, and is raised as it came; at once, if a loading process tells of it.
    """

    def __init__(self, batches: Iterator[Any], *, grace: float) -> None:
        self._batches = batches
        self._grace = grace

    def __iter__(self) -> _Raised:
        return self

    def __next__(self) -> Batch:
        try:
            batch = next(self._batches)
        except _CUT_OFF as error:
            if "in DataLoader worker process" not in str(error):  # torch's words where it hands on an error of the data
                time.sleep(self._grace)
            raise
        if isinstance(batch, _Failure):
            raise batch.error
        return batch


class _Flag:
    """What torch asks of an event, without its lock: a process that ends while it asks would keep that for ever, and the
    trainer, which sets the event to end the others, would wait for it."""

    def __init__(self, raised: Any) -> None:
        self._raised = raised  # a byte that all processes see

    def set(self) -> None:
        self._raised.value = True

    def is_set(self) -> bool:
        return bool(self._raised.value)


def _loading_processes() -> BaseContext:
    """Processes as `multiprocessing` starts them here, but for their events' locks."""
    usual: type[Any] = type(multiprocessing.get_context(multiprocessing.get_start_method()))

    class WithoutLocks(usual):
        def Event(self) -> _Flag:
            return _Flag(self.RawValue(ctypes.c_bool, False))

    return cast(BaseContext, WithoutLocks())


class Batches(DataLoader[Batch]):
    """Batches, and the processes that load them, which can be sent away in the middle of their work."""

    leaving: Any = None  #: a semaphore of torch.multiprocessing; an event would wait for the answers of the killed

    def __iter__(self) -> Any:
        return _Raised(super().__iter__(), grace=5.0 if self.num_workers else 0.0)

    def send_away(self) -> None:
        """End the loading processes now, without errors; torch itself would wait for what they are at."""
        for _ in range(self.num_workers):
            self.leaving.release()


def train_batches(order: TrainOrder, *, epoch: int, step: int, epochs: int, workers: int, pin: bool) -> Batches:
    """Batches from that update to the end of the last epoch, as one stream: workers start once and read ahead."""
    sampler = _From(order.stream(epoch=epoch, step=step, epochs=epochs))
    return _loader(order.split, sampler, workers=workers, pin=pin)


@dataclass(kw_only=True)
class EvalOrder:
    """The indices of one process's evaluation batches.

    Every example is seen once. Only where the last batch cannot be shared evenly does its last example appear in
    more than one process, because processes must take part alike; an evaluator ignores repeats.
    """

    length: int
    batch_size: int  #: over all processes
    rank: int = 0
    world: int = 1
    epoch: int = 0  #: of the keys; may change between two times through, and workers that stay then see it

    def __iter__(self) -> Iterator[Keys]:
        size = max(self.batch_size // self.world, 1) * self.world
        for start in range(0, self.length, size):
            indices = list(range(start, min(start + size, self.length)))
            indices += indices[-1:] * (-len(indices) % self.world)
            share = len(indices) // self.world
            yield [(self.epoch, index) for index in indices[self.rank * share : (self.rank + 1) * share]]


def eval_batches(split: Split, order: EvalOrder, *, workers: int, pin: bool) -> Batches:
    """The batches of `order`; can be iterated again and keeps its workers."""
    return _loader(split, order, workers=workers, pin=pin, persistent=workers > 0)


def _loader(split: Split, sampler: _From | EvalOrder, *, workers: int, pin: bool, persistent: bool = False) -> Batches:
    leaving = torch.multiprocessing.Semaphore(0) if workers else None
    examples = _Examples(split)
    batches = Batches(
        examples,
        batch_sampler=cast(Any, sampler),
        collate_fn=examples.collate,
        num_workers=workers,
        multiprocessing_context=_loading_processes() if workers else None,
        pin_memory=pin,
        persistent_workers=persistent,
        worker_init_fn=partial(_serve_until, leaving) if workers else None,
    )
    batches.leaving = leaving
    return batches


def _serve_until(leaving: Any, worker: int) -> None:
    """Leave signals to the parent, and go when it says so.

    Ctrl-C and SIGTERM reach the whole process group, and the trainer needs its workers until the step is finished and
    saved. What may be slow or stuck is the loading, so a thread beside it does the going.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)

    def go() -> None:
        leaving.acquire()
        os._exit(0)  # what else ends a process from a thread

    threading.Thread(target=go, daemon=True).start()


@contextmanager
def workers_explained(folder: Path, *, workers: int) -> Iterator[None]:
    """Turn the death of a loading process within the block into an error that says why and what to do.

    Torch raises it from a signal handler, so it comes out of whatever the trainer was at.

    Raises:
        TrainingError: a loading process was killed, or crashed.
    """
    try:
        yield
    except RuntimeError as error:
        found = re.search(r"DataLoader worker \(pid.*?\) (is killed by signal: [^.]*|exited unexpectedly)", str(error))
        if found is None:
            raise
        if "Bus error" in found[1]:
            cause = "shared memory is used up (df -h /dev/shm; in a container, raise --shm-size)"
        elif "exited" in found[1] or "Killed" in found[1]:
            cause = "memory ran short, and the system ended the process that asked for more (see dmesg)"
        else:
            cause = "a library that reads the data crashed"
        fewer = f"{workers // 2}" if workers > 1 else "0, which loads in the trainer itself"
        raise TrainingError(
            f"{folder}: a process that loads data is gone ({found[0]}). The likely cause: {cause}. Repeat the command, "
            f"which goes on from what was saved; if it happens again, load with fewer processes (now {workers}): "
            f"--set train.workers={fewer}. That changes no outcome"
        ) from error


def indices_of(keys: Keys) -> torch.Tensor:
    """The indices of a batch's keys."""
    return torch.tensor([index for _, index in keys], dtype=torch.int64)
