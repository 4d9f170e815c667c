"""Faults that a process causes in itself at a chosen moment; all of them can be pickled and sent to another process."""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol


class Harm(Protocol):
    def apply(self) -> None:
        """Install the fault before the command starts."""


# --- when -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OnCall:
    """Run `action` at the `call`-th call (from 1) of the function `target`, "module:name", counted per process."""

    target: str
    action: Callable[[], object]
    call: int = 1
    after: bool = False  #: when it returns, instead of before it begins
    of: Literal["trainer", "worker"] = "trainer"  #: worker: a process that loads data

    def apply(self) -> None:
        owner, name = _owner(self.target)
        original, counter, trainer = getattr(owner, name), itertools.count(1), os.getpid()

        @functools.wraps(original)
        def harmed(*args: Any, **kwargs: Any) -> Any:
            mine = (os.getpid() == trainer) == (self.of == "trainer")
            due = mine and next(counter) == self.call
            if due and not self.after:
                self.action()
            result = original(*args, **kwargs)
            if due and self.after:
                self.action()
            return result

        setattr(owner, name, harmed)


@dataclass(frozen=True, kw_only=True)
class OnWrite:
    """Run `action` at the `time`-th write (from 1) of a file of this name: before the write, when half of the temporary
    file is written, before the temporary file is renamed, or after."""

    name: str
    action: Callable[[], object]
    moment: Literal["before", "half", "rename", "after"]
    time: int = 1

    def apply(self) -> None:
        counter = itertools.count(1)
        (self._at_write if self.moment in ("before", "half") else self._at_rename)(counter)

    def _at_write(self, counter: Iterator[int]) -> None:
        import attngraft.files

        harm, original = self, attngraft.files._Recorder

        class Harmed(original):  # type: ignore[misc, valid-type]
            def __init__(self, path: Path, mode: str) -> None:
                self._due = path.name.startswith(f".{harm.name}.") and next(counter) == harm.time
                if self._due and harm.moment == "before":
                    harm.action()
                super().__init__(path, mode)

            def write(self, data: Any, /) -> int:
                if self._due and harm.moment == "half":
                    super().write(memoryview(data)[: len(data) // 2])
                    harm.action()
                return int(super().write(data))

        attngraft.files._Recorder = Harmed  # type: ignore[misc]

    def _at_rename(self, counter: Iterator[int]) -> None:
        original = os.replace

        def harmed(source: Any, target: Any, **kwargs: Any) -> None:
            due = Path(target).name == self.name and next(counter) == self.time
            if due and self.moment == "rename":
                self.action()
            original(source, target, **kwargs)
            if due and self.moment == "after":
                self.action()

        os.replace = harmed


@dataclass(frozen=True, kw_only=True)
class FromTheStart:
    """Run `action` before the command starts."""

    action: Callable[[], object]

    def apply(self) -> None:
        self.action()


@dataclass(frozen=True)
class WithTools:
    """Replace functions that a study uses (`attngraft.study.runner.Tools`)."""

    changes: Mapping[str, object]

    def apply(self) -> None:
        import attngraft.study.runner as runner

        runner.Tools = functools.partial(runner.Tools, **self.changes)  # type: ignore[assignment, misc]


@dataclass(frozen=True)
class InWorkers:
    """Install `harm` in each process that trains a study's runs, before its first run."""

    harm: Harm

    def apply(self) -> None:
        WithTools({"train": _Harmed(self.harm)}).apply()


@dataclass(frozen=True)
class _Harmed:
    """A training function that installs a fault first; it can be pickled."""

    harm: Harm

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import attngraft.training.loop as loop

        if os.getpid() not in _harmed:
            _harmed.add(os.getpid())
            self.harm.apply()
        return loop.train(*args, **kwargs)


_harmed: set[int] = set()


# --- what -------------------------------------------------------------------------------------------------------------


def kill() -> None:
    """Kill this process with SIGKILL, like `kill -9` or the kernel when out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Stand:
    """Create the file `here`, then wait until the file `until` exists, for at most `seconds`."""

    here: Path
    until: Path | None = None
    seconds: float = 60.0

    def __call__(self) -> None:
        self.here.touch()
        deadline = time.monotonic() + self.seconds
        while time.monotonic() < deadline and not (self.until is not None and self.until.exists()):
            time.sleep(0.02)


@dataclass(frozen=True)
class StandTogether:
    """Wait until `count` processes have arrived, create the file `here`, and wait for another `seconds`."""

    here: Path
    count: int
    seconds: float

    def __call__(self) -> None:
        self.here.with_name(f"{self.here.name}.{os.getpid()}").touch()
        while len(list(self.here.parent.glob(f"{self.here.name}.*"))) < self.count:
            time.sleep(0.02)
        self.here.touch()
        time.sleep(self.seconds)


@dataclass(frozen=True)
class LimitFiles:
    """Limit the files that this process writes to `size` bytes each (`ulimit -f`)."""

    size: int

    def __call__(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@dataclass(frozen=True)
class LimitMemory:
    """Limit the memory of this process to `more` bytes above its current use (`ulimit -v`), so that the allocator fails."""

    more: int

    def __call__(self) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        size = pages * resource.getpagesize() + self.more
        resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))


@dataclass(frozen=True)
class FillDisk:
    """Write a file until the disk of `folder` is full."""

    folder: Path

    def __call__(self) -> None:
        with (self.folder / "filler").open("wb", buffering=0) as file:
            for size in (2**16, 2**12, 1):
                try:
                    while file.write(b"x" * size) == size:
                        pass
                except OSError:
                    continue


@dataclass(frozen=True, kw_only=True)
class LackOfMemory:
    """Make the host raise an out-of-memory error, as a device does, for batches that are larger than these."""

    training: int = 10**9
    evaluation: int = 10**9

    def __call__(self) -> None:
        import torch
        from timm.models.vision_transformer import VisionTransformer

        original = VisionTransformer.forward

        def forward(model: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
            if len(x) > (self.training if model.training else self.evaluation):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB (simulated)")
            return original(model, x, *args, **kwargs)

        VisionTransformer.forward = forward


@dataclass(frozen=True)
class LossIsNaN:
    """Make the loss NaN in the `update`-th update (from 1) of this process."""

    update: int

    def __call__(self) -> None:
        from attngraft.training.loop import Trainer
        from attngraft.training.update import Update

        # counted in the training loop, because the profiler also makes updates
        update_weights, losses, counter = Trainer._update_weights, Update.losses, itertools.count(1)

        def nan_losses(*args: Any, **kwargs: Any) -> Any:
            total, means = losses(*args, **kwargs)
            return total * float("nan"), means | {"loss": means["loss"] * float("nan")}

        def harmed(trainer: Trainer) -> Any:
            Update.losses = nan_losses if next(counter) == self.update else losses  # type: ignore[method-assign]
            return update_weights(trainer)

        Trainer._update_weights = harmed  # type: ignore[method-assign]


@dataclass(frozen=True)
class ClockBackwards:
    """Set the clock back by an hour each time that it is read."""

    def __call__(self) -> None:
        now, looks = time.time(), itertools.count(1)
        time.time = lambda: now - 3600.0 * next(looks)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Make the function `target`, "module:name", return `value`."""

    target: str
    value: object

    def __call__(self) -> None:
        owner, name = _owner(self.target)
        setattr(owner, name, lambda *args, **kwargs: self.value)


def _owner(target: str) -> tuple[Any, str]:
    """Return the module or class that contains "module:name", and the last part of the name."""
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for each in outer:
        owner = getattr(owner, each)
    return owner, name
