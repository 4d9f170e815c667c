"""Stopping at a good moment: Ctrl-C and SIGTERM become a wish that the loop grants after the running step."""

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

#: SIGHUP is what a closed terminal sends; `nohup` has it ignored, and then it stays so
SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop, and saved itself first. The message says how to go on."""


class StoppedWaiting(BaseException):  # so that no loader takes it for a bad image
    """The run is to stop, and was only waiting for data."""


class StopSignal:
    """Listens for SIGINT, SIGTERM and SIGHUP while in its block; a second Ctrl-C stops at once, without saving.

    Processes of one run must stop after the same step, so they agree on it: the wish of any of them, one step later,
    is everybody's. They talk over the CPU, and no device waits.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.wanted = False
        self._waiting = False
        self._saved: dict[signal.Signals, Any] = {}
        self._group: Any = None
        self._vote: torch.Tensor | None = None
        self._counting: dist.Work | None = None
        if accelerator.num_processes > 1:
            self._group = dist.new_group(backend="gloo")

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
                    self._saved[number] = signal.signal(number, self._want)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._saved.items():
            signal.signal(number, handler)
        if self._counting is not None and kind is None:
            self._counting.wait()
        if self._group is not None and kind is None:
            dist.destroy_process_group(self._group)

    def _want(self, number: int, frame: FrameType | None) -> None:
        if self.wanted and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.wanted = True
        if self._waiting:
            self._waiting = False
            raise StoppedWaiting

    def agreed(self) -> bool:
        """Whether all processes stop now. Every process asks once per step."""
        if self._group is None:
            return self.wanted
        answer = False
        if self._counting is not None and self._vote is not None:
            self._counting.wait()
            answer = bool(self._vote.item())
        self._vote = torch.tensor([int(self.wanted)])
        self._counting = dist.all_reduce(self._vote, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return answer

    def while_waiting(self, items: Iterable[T]) -> Iterator[T]:
        """`items`, where a signal ends the wait for the next one: data may be slower than the time that is left to save.

        Raises:
            StoppedWaiting: in a run of one process. Several have to agree, and wait.
        """
        iterator = iter(items)
        while True:
            try:
                self._waiting = self._group is None
                if self._waiting and self.wanted:
                    raise StoppedWaiting
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self._waiting = False
            yield item
