"""Progress of an evaluation under suites, as log messages or as a progress bar."""

from __future__ import annotations

import logging
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from attngraft.counting import CountBars, CountLines

log = logging.getLogger(__name__)


class SuiteProgress:
    """Progress callbacks for an evaluation under suites; the base class does nothing."""

    def on_count(self, description: str, done: int, total: int) -> None:
        """Called for each item of a long loop while the data are opened (`attngraft.counting`)."""

    def on_suite(self, title: str, *, conditions: int, done: int, examples: int) -> None:
        """Called when a suite starts, `done` of whose `conditions` are already finished."""

    def on_condition(self, label: str) -> None:
        """Called when a condition starts."""

    def on_examples(self, count: int) -> None:
        """Called for each batch, with its number of examples."""

    def on_outcome(self, label: str, outcome: str) -> None:
        """Called when a condition is finished or turns out to be unsupported."""

    def on_failure(self, title: str, error: str) -> None:
        """Called when a suite fails; the remaining suites are still evaluated."""


class SuiteLog(SuiteProgress):
    """Log a message for each suite, and its progress every `every` seconds."""

    def __init__(self, *, every: float = 30.0) -> None:
        self._every, self._last = every, time.monotonic()
        self._title, self._label = "", ""
        self._conditions, self._number, self._examples, self._seen = 0, 0, 0, 0
        self._counts = CountLines()

    def on_count(self, description: str, done: int, total: int) -> None:
        self._counts(description, done, total)

    def on_suite(self, title: str, *, conditions: int, done: int, examples: int) -> None:
        self._title, self._conditions, self._number, self._examples = title, conditions, done, examples
        before = f", {done} already finished" if done else ""
        log.info("%s: %d condition%s%s", title, conditions, "" if conditions == 1 else "s", before)

    def on_condition(self, label: str) -> None:
        self._label, self._seen = label, 0
        self._number += 1

    def on_examples(self, count: int) -> None:
        self._seen += count
        if time.monotonic() - self._last > self._every:
            self._last = time.monotonic()
            where = (self._title, self._number, self._conditions, self._label, self._seen, self._examples)
            log.info("%s: condition %d of %d (%s), %d of %d examples", *where)

    def on_outcome(self, label: str, outcome: str) -> None:
        log.debug("%s: %s", label, outcome)

    def on_failure(self, title: str, error: str) -> None:
        log.info("%s failed: %s", title, error)


class SuiteBar(SuiteProgress):
    """Progress bar over all examples of a suite; use it in a `with` block."""

    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._counts = CountBars(self._bars, note="")

    def on_count(self, description: str, done: int, total: int) -> None:
        self._counts(description, done, total)

    def __enter__(self) -> SuiteBar:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def on_suite(self, title: str, *, conditions: int, done: int, examples: int) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(title, total=conditions * examples, completed=done * examples, note="")

    def on_condition(self, label: str) -> None:
        if self._task is not None:
            self._bars.update(self._task, note=label)

    def on_examples(self, count: int) -> None:
        if self._task is not None:
            self._bars.advance(self._task, count)

    def on_failure(self, title: str, error: str) -> None:
        self._bars.console.print(f"{title} failed: {error}", markup=False, highlight=False, soft_wrap=True)
