"""Batches and the processes that load them.

A batch is a list of keys (epoch, index), so that a loading process knows the epoch of each example. The seed
determines the keys of all batches, so a run resumes in mid-epoch without the state of a DataLoader.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from multiprocessing import AuthenticationError
from multiprocessing.context import BaseContext
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from attngraft.errors import AttngraftError, ConfigError
from attngraft.tasks.task import Batch, Split
from attngraft.training.randomness import epoch_order
from attngraft.training.recipe import Recipe
from attngraft.training.sizes import epoch_length
from attngraft.training.stopping import SIGNALS

Keys = list[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class TrainOrder:
    """Keys of every training batch of one process.

    Update `step` of an epoch uses the next `batch_size` examples of the epoch's order; the process of `rank` gets its
    contiguous share of them and cuts it into `accumulate` micro-batches. An incomplete last batch of an epoch is not used.
    If the split forms its own batches (`Split.batches`), the number of batches may differ between epochs, and the
    sizes of the micro-batches of a batch by one.
    """

    split: Split
    seed: int
    batch_size: int
    accumulate: int = 1
    rank: int = 0
    world: int = 1
    size_field: str = "train.batch_size"  #: recipe field of `batch_size`, for messages
    _sizes: dict[int, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)  # by epoch

    def __post_init__(self) -> None:
        if self.own_batches:
            return
        if self.batch_size % (self.accumulate * self.world):
            raise ConfigError(
                f"{self.size_field} {self.batch_size} cannot be divided among {self.world} processes with "
                f"train.accumulate {self.accumulate}: make it a multiple of {self.world * self.accumulate}"
            )
        if self.steps < 1:
            fewer = f"--set {self.size_field}={self._examples} or less"
            raise ConfigError(
                f"{self.size_field} {self.batch_size} is more than an epoch's {self._examples} training examples: use "
                f"{fewer if self.world == 1 else f'fewer processes (now {self.world})'}"
            )

    @cached_property
    def _examples(self) -> int:
        return epoch_length(self.split, seed=self.seed)

    @cached_property
    def own_batches(self) -> bool:
        """Whether the split forms its own batches."""
        return self.split.batches(seed=self.seed, epoch=0) is not None

    @cached_property
    def steps(self) -> int:
        """Number of updates in the first epoch; all epochs are equal unless the split forms its own batches."""
        return len(self._batch_sizes(0)) if self.own_batches else self._examples // self.batch_size

    def steps_of(self, epoch: int) -> int:
        """Return the number of updates in `epoch`."""
        return len(self._batch_sizes(epoch)) if self.own_batches else self.steps

    def updates_before(self, epoch: int, *, begin: int = 0) -> int:
        """Return the number of updates in the epochs from `begin` to `epoch` - 1.

        Raises:
            ConfigError: a batch of these epochs cannot be divided among the processes.
        """
        if self.own_batches:
            return sum(len(self._batch_sizes(each)) for each in range(begin, epoch))
        return (epoch - begin) * self.steps

    def epochs_of(self, updates: int) -> int:
        """Return the number of epochs, the last perhaps incomplete, in the first `updates` updates."""
        epochs = 0 if self.own_batches else updates // self.steps
        while self.updates_before(epochs) < updates:
            epochs += 1
        return epochs

    def part_sizes(self, epoch: int, step: int) -> list[int] | None:
        """Return the sizes of an update's micro-batches in all processes; None if all sizes are equal."""
        if not self.own_batches:
            return None
        parts = self.accumulate * self.world
        size, longer = divmod(int(self._batch_sizes(epoch)[step]), parts)
        return [size + (part < longer) for part in range(parts)] if longer else None

    def order(self, epoch: int) -> np.ndarray:
        """Return the example indices of `epoch`, in the split's own order if it has one, else shuffled."""
        order = self.split.order(seed=self.seed, epoch=epoch)
        return epoch_order(self.seed, epoch, len(self.split)) if order is None else order

    def micro_batches(self, epoch: int, step: int, batches: Sequence[np.ndarray] | None = None) -> list[Keys]:
        """Return the keys of this process's micro-batches in one update.

        `batches` are the epoch's example indices, one array per update; None: they are computed.
        """
        batch = (self._batches(epoch) if batches is None else batches)[step]
        parts = np.array_split(batch, self.accumulate * self.world)
        own = parts[self.rank * self.accumulate : (self.rank + 1) * self.accumulate]
        return [[(epoch, int(index)) for index in part] for part in own]

    def stream(self, *, epoch: int, step: int, epochs: int) -> Iterator[Keys]:
        """Yield the keys of all micro-batches from update `step` of `epoch` to the end of the last epoch."""
        for current in range(epoch, epochs):
            batches = self._batches(current)
            for number in range(step if current == epoch else 0, len(batches)):
                yield from self.micro_batches(current, number, batches)

    def _batches(self, epoch: int) -> Sequence[np.ndarray]:
        """Return the example indices of an epoch, one array per update."""
        own = self.split.batches(seed=self.seed, epoch=epoch) if self.own_batches else None
        if own is not None:
            return own
        used = self.order(epoch)[: self.steps * self.batch_size]
        return list(used.reshape(self.steps, self.batch_size))

    def _batch_sizes(self, epoch: int) -> np.ndarray:
        if epoch not in self._sizes:
            batches = self.split.batches(seed=self.seed, epoch=epoch)
            sizes = np.array([len(batch) for batch in batches or ()], dtype=np.int64)
            parts = self.accumulate * self.world
            if not len(sizes):
                raise ConfigError(
                    f"the training split has no batches in epoch {epoch + 1}; Split.batches must return at least one"
                )
            if sizes.min() < parts:
                raise ConfigError(
                    f"train.accumulate: batch {sizes.argmin() + 1} of epoch {epoch + 1} has {sizes.min()} examples, which "
                    f"cannot be cut into {parts} parts (train.accumulate {self.accumulate}, {self.world} processes); use "
                    "fewer parts or larger batches"
                )
            self._sizes[epoch] = sizes
        return self._sizes[epoch]


def train_order(recipe: Recipe, split: Split, *, rank: int = 0, world: int = 1) -> TrainOrder:
    """Return the training order of a run, whose sizes were fitted to the split by `sizes.fit_sizes`.

    Raises:
        ConfigError: the batch size does not fit the split or the processes.
    """
    size, accumulate = recipe.train.batch_size, recipe.train.accumulate
    return TrainOrder(split=split, seed=recipe.seed, batch_size=size, accumulate=accumulate, rank=rank, world=world)


@dataclass(frozen=True)
class _Failure:
    """An error of the data, returned as an example or a batch by a loading process; torch would only keep its text."""

    error: AttngraftError


class _Examples(Dataset[Any]):
    """A split that returns errors as examples or batches instead of raising them."""

    def __init__(self, split: Split) -> None:
        self._split = split

    def __getitem__(self, key: tuple[int, int]) -> Any:
        try:
            return self._split[key]
        except AttngraftError as error:
            return _Failure(error)

    def collate(self, examples: list[Any]) -> Any:
        failed = next((example for example in examples if isinstance(example, _Failure)), None)
        try:
            return self._split.collate(examples) if failed is None else failed
        except AttngraftError as error:
            return _Failure(error)


#: errors while receiving a batch from a process that has died
_SENDER_DIED = (OSError, EOFError, AuthenticationError)


class _RaisingIterator:
    """Iterator over batches that raises the errors returned in their place.

    The sockets of a killed loading process close a moment before the system reports its death. Torch then raises an
    error from a signal handler; the iterator sleeps for up to `grace` seconds to receive that error, which names the
    cause. If no process died, the original error is raised; an error of the data is raised immediately.
    """

    def __init__(self, batches: Iterator[Any], *, grace: float) -> None:
        self._batches = batches
        self._grace = grace

    def __iter__(self) -> _RaisingIterator:
        return self

    def __next__(self) -> Batch:
        try:
            batch = next(self._batches)
        except _SENDER_DIED as error:
            if "in DataLoader worker process" not in str(error):  # torch's text in errors of the data
                time.sleep(self._grace)
            raise
        if isinstance(batch, _Failure):
            try:
                raise batch.error
            finally:
                del batch  # ends a reference cycle, whose collection could close a queue's pipe before its thread does
        return batch


class _LockFreeEvent:
    """The part of an event that torch uses, without a lock.

    A process that dies while holding an event's lock would block the trainer, which sets the event to stop the others.
    """

    def __init__(self, flag: Any) -> None:
        self._flag = flag  # a byte in shared memory

    def set(self) -> None:
        self._flag.value = True

    def is_set(self) -> bool:
        return bool(self._flag.value)


def _lock_free_context() -> BaseContext:
    """Return the default multiprocessing context with lock-free events."""
    default: type[Any] = type(multiprocessing.get_context(multiprocessing.get_start_method()))

    class LockFreeContext(default):
        def Event(self) -> _LockFreeEvent:
            return _LockFreeEvent(self.RawValue(ctypes.c_bool, False))

    return cast(BaseContext, LockFreeContext())


class Batches(DataLoader[Batch]):
    """Data loader whose processes can be ended in the middle of their work."""

    exit_signal: Any = None  #: a semaphore, because setting an event waits for killed processes

    def __iter__(self) -> Any:
        return _RaisingIterator(super().__iter__(), grace=5.0 if self.num_workers else 0.0)

    def stop_workers(self) -> None:
        """End the loading processes now, without errors; torch itself would wait for their current batches."""
        for _ in range(self.num_workers):
            self.exit_signal.release()


def train_batches(
    order: TrainOrder, *, epoch: int, step: int, epochs: int, workers: int, pin: bool, updates: int | None = None
) -> Batches:
    """Return all batches from update `step` of `epoch` on as one stream, so that workers start only once.

    The stream ends after `epochs` epochs or `updates` updates of the whole run.
    """
    keys = order.stream(epoch=epoch, step=step, epochs=epochs)
    if updates is not None:
        left = updates - order.updates_before(epoch) - step
        keys = itertools.islice(keys, left * order.accumulate)
    return _loader(order.split, keys, workers=workers, pin=pin)


@dataclass(kw_only=True)
class EvalOrder:
    """Indices of one process's evaluation batches.

    Every example is evaluated once. If the last batch cannot be divided evenly, its last example is repeated in other
    processes, because all must participate; the evaluator ignores repeats.
    """

    length: int
    batch_size: int  #: over all processes
    rank: int = 0
    world: int = 1
    epoch: int = 0  #: epoch in the keys; may change between passes, even with persistent workers

    def __len__(self) -> int:
        return math.ceil(self.length / self._size)

    @property
    def _size(self) -> int:
        """Number of examples of a batch, over all processes."""
        return max(self.batch_size // self.world, 1) * self.world

    def __iter__(self) -> Iterator[Keys]:
        size = self._size
        for start in range(0, self.length, size):
            indices = list(range(start, min(start + size, self.length)))
            indices += indices[-1:] * (-len(indices) % self.world)
            share = len(indices) // self.world
            yield [(self.epoch, index) for index in indices[self.rank * share : (self.rank + 1) * share]]


def eval_batches(split: Split, order: EvalOrder, *, workers: int, pin: bool) -> Batches:
    """Return a data loader for `order`, for repeated passes with the same workers."""
    return _loader(split, order, workers=workers, pin=pin, persistent=workers > 0)


def _loader(split: Split, keys: Iterable[Keys], *, workers: int, pin: bool, persistent: bool = False) -> Batches:
    exit_signal = torch.multiprocessing.Semaphore(0) if workers else None
    examples = _Examples(split)
    batches = Batches(
        examples,
        batch_sampler=cast(Any, keys),
        collate_fn=examples.collate,
        num_workers=workers,
        multiprocessing_context=_lock_free_context() if workers else None,
        pin_memory=pin,
        persistent_workers=persistent,
        worker_init_fn=partial(_exit_on, exit_signal) if workers else None,
    )
    batches.exit_signal = exit_signal
    return batches


def _exit_on(exit_signal: Any, worker: int) -> None:
    """Ignore signals in a loading process, and exit when its parent releases `exit_signal`.

    Ctrl-C and SIGTERM reach the whole process group, and the trainer needs its workers until the step is finished and
    saved. Loading may be slow or stuck, so a thread waits for the signal.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)

    def wait() -> None:
        exit_signal.acquire()
        os._exit(0)  # sys.exit would only end the thread

    threading.Thread(target=wait, daemon=True).start()


def indices_of(keys: Keys) -> torch.Tensor:
    """Return the indices of a batch's keys."""
    return torch.tensor([index for _, index in keys], dtype=torch.int64)
