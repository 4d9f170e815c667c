"""Graceful stops: Ctrl-C, SIGTERM and SIGHUP make the training loop stop after the current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from torch import distributed as dist

T = TypeVar("T")

#: a closed terminal sends SIGHUP, which stays ignored under `nohup`
SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


class Interrupted(KeyboardInterrupt):
    """The run was interrupted and has saved a checkpoint. The message explains how to resume."""


class StoppedWaiting(BaseException):  # not an Exception, which a loader may handle as a bad image
    """The run was interrupted while it waited for data."""


class StopSignal:
    """Handler of SIGINT, SIGTERM and SIGHUP in a `with` block.

    The first signal stops the run after the current step; a second Ctrl-C stops it at once, without saving.

    Processes of one run must stop after the same step, so they vote at each step: a signal in any process stops all of
    them one step later. They communicate on the CPU, so that no device waits.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.requested = False
        self._waiting = False
        self._saved: dict[signal.Signals, Any] = {}
        self._group: Any = None
        self._vote: torch.Tensor | None = None
        self._vote_sum: dist.Work | None = None
        if accelerator.num_processes > 1:
            self._group = dist.new_group(backend="gloo")

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
                    self._saved[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._saved.items():
            signal.signal(number, handler)
        if self._vote_sum is not None and kind is None:
            self._vote_sum.wait()
        if self._group is not None and kind is None:
            dist.destroy_process_group(self._group)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
        if self._waiting:
            self._waiting = False
            raise StoppedWaiting

    def agreed(self) -> bool:
        """Return whether all processes stop now; every process must call this once per step."""
        if self._group is None:
            return self.requested
        stop = False
        if self._vote_sum is not None and self._vote is not None:
            self._vote_sum.wait()
            stop = bool(self._vote.item())
        self._vote = torch.tensor([int(self.requested)])
        self._vote_sum = dist.all_reduce(self._vote, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return stop

    def interruptible(self, items: Iterable[T]) -> Iterator[T]:
        """Yield `items`; a signal also ends the wait for an item, because slow data may leave no time to save.

        Raises:
            StoppedWaiting: on a signal, in a run of one process. Several processes keep waiting, because they must agree.
        """
        iterator = iter(items)
        while True:
            try:
                self._waiting = self._group is None
                if self._waiting and self.requested:
                    raise StoppedWaiting
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self._waiting = False
            yield item
