"""Progress callbacks of a run: none, log lines, or live bars."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from attngraft.counting import CountBars, CountLines

log = logging.getLogger(__name__)


class Progress:
    """Callbacks of the training loop, which do nothing by default.

    `on_step` is called after every update and must be cheap.
    """

    def on_count(self, description: str, done: int, total: int) -> None:
        """Called for each item of a long loop other than training (`attngraft.counting`), such as evaluation batches."""

    def on_start(self, total_steps: int, *, done_steps: int, epochs: int, steps_per_epoch: int) -> None:
        """Called when training starts, or resumes after `done_steps`."""

    def on_step(self, *, step: int, epoch: int, loss: float, lr: float) -> None:
        """Called after update `step` (from 1, over the whole run), in `epoch` (from 1)."""

    def on_epoch(self, metrics: Mapping[str, float]) -> None:
        """Called after each evaluation with the new row of metrics.jsonl."""

    def on_end(self, *, finished: bool) -> None:
        """Called when training ends; `finished` is False if it was stopped."""


Silent = Progress


class LogLines(Progress):
    """One log line per evaluation, and one every `every` seconds in between, each prefixed with `label`."""

    def __init__(self, *, every: float = 30.0, label: str = "") -> None:
        self._every = every
        self._label = f"{label}: " if label else ""
        self._total = self._epochs = 0
        self._next = 0.0
        self._counts = CountLines(every=every, label=label)

    def on_count(self, description: str, done: int, total: int) -> None:
        self._counts(description, done, total)

    def on_start(self, total_steps: int, *, done_steps: int, epochs: int, steps_per_epoch: int) -> None:
        self._total, self._epochs = total_steps, epochs
        self._next = time.monotonic() + self._every
        verb = f"resuming after step {done_steps} of" if done_steps else "training for"
        log.info("%s%s %d steps: %d epochs of %d", self._label, verb, total_steps, epochs, steps_per_epoch)

    def on_step(self, *, step: int, epoch: int, loss: float, lr: float) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every
            line = "%sepoch %d/%d  step %d/%d  loss %.4f  lr %.2e"
            log.info(line, self._label, epoch, self._epochs, step, self._total, loss, lr)

    def on_epoch(self, metrics: Mapping[str, float]) -> None:
        self._next = time.monotonic() + self._every
        line = "%sepoch %s  %s  %.1f s"
        log.info(line, self._label, _when(metrics, self._epochs), format_metrics(metrics), metrics["seconds"])

    def on_end(self, *, finished: bool) -> None:
        if finished:
            log.info("%sfinished", self._label)


class LiveBars(Progress):
    """A live progress bar on a terminal, with a line per epoch above it; use it in a `with` block."""

    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            refresh_per_second=5,
        )
        self._counts = CountBars(self._bars, note="")
        self._task = self._bars.add_task("starting", total=None, note="")
        self._epochs = 0
        self._next = 0.0

    def __enter__(self) -> LiveBars:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def on_count(self, description: str, done: int, total: int) -> None:
        self._counts(description, done, total)

    def on_start(self, total_steps: int, *, done_steps: int, epochs: int, steps_per_epoch: int) -> None:
        self._epochs = epochs
        self._bars.reset(self._task, total=total_steps, completed=done_steps, description="training")

    def on_step(self, *, step: int, epoch: int, loss: float, lr: float) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + 0.2
        note = f"loss {loss:.3f}  lr {lr:.1e}"
        self._bars.update(self._task, completed=step, description=f"epoch {epoch}/{self._epochs}", note=note)

    def on_epoch(self, metrics: Mapping[str, float]) -> None:
        self._next = 0.0
        line = f"epoch {_when(metrics, self._epochs, width=3)}  {format_metrics(metrics)}  {metrics['seconds']:.1f} s"
        self._bars.console.print(line, highlight=False, markup=False)

    def on_end(self, *, finished: bool) -> None:
        if finished:
            self._bars.update(self._task, completed=self._bars.tasks[0].total, description="finished")


def _when(metrics: Mapping[str, float], epochs: int, *, width: int = 0) -> str:
    """Return the epoch as `3/10`, followed by the number of updates if the metrics contain it."""
    step = f"  update {metrics['step']:.0f}" if "step" in metrics else ""
    return f"{metrics['epoch']:>{width}.0f}/{epochs}{step}"


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Return the losses and validation metrics of an epoch: `train/loss 1.234  val/top1 56.78`."""
    shown = {name: value for name, value in metrics.items() if "/" in name}
    return "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
