"""Counts of long loops (`3 of 12 variants`), which the running command shows.

A loop counts its items with `counted` or `count`; a command or a run decides where they are shown with `counts_shown`.
Without that, they are not shown.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

log = logging.getLogger(__name__)

T = TypeVar("T")
Show = Callable[[str, int, int], None]  #: (description, number of finished items, total)

_show: ContextVar[Show | None] = ContextVar("show", default=None)


@contextmanager
def counts_shown(show: Show) -> Iterator[None]:
    """Pass the counts of loops in the block to `show`."""
    before = _show.set(show)
    try:
        yield
    finally:
        _show.reset(before)


def count(description: str, done: int, total: int) -> None:
    """Show that `done` of `total` items of a loop are finished; cheap enough to call for every item."""
    show = _show.get()
    if show is not None:
        show(description, done, total)


def counted(items: Iterable[T], description: str, *, total: int | None = None) -> Iterator[T]:
    """Yield `items`, and count those that are finished; `total` defaults to their number."""
    if total is None:
        items = items if isinstance(items, Collection) else list(items)
        total = len(items)
    count(description, 0, total)
    for done, item in enumerate(items, start=1):
        yield item
        count(description, done, total)


def format_duration(seconds: float) -> str:
    """Format a duration: 45 s, 12 min, 3 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


class CountLines:
    """Log the counts of a loop once it has taken 2 seconds, then every `every` seconds, with the time left."""

    AFTER = 2.0

    def __init__(self, *, every: float = 15.0, label: str = "") -> None:
        self._every, self._label = every, f"{label}: " if label else ""
        self._loops: dict[str, tuple[float, float]] = {}  # description -> times of the start and of the next line

    def __call__(self, description: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done == 0 or description not in self._loops:
            self._loops[description] = (now, now + self.AFTER)
        start, due = self._loops[description]
        if done >= total:
            del self._loops[description]
        elif now >= due:
            self._loops[description] = (start, now + self._every)
            left = f", about {format_duration((now - start) / done * (total - done))} left" if done else ""
            log.info("%s%s: %d of %d%s", self._label, description, done, total, left)


class CountBars:
    """Progress bars of the current loops, shown while they run.

    Args:
        bars: progress display to add them to, such as `count_display()`.
        fields: fields that the columns of `bars` use.
    """

    def __init__(self, bars: Progress, **fields: Any) -> None:
        self.bars, self._fields = bars, fields
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, description: str, done: int, total: int) -> None:
        if done >= total:
            if description in self._tasks:
                self.bars.remove_task(self._tasks.pop(description))
            return
        if description not in self._tasks:
            self._tasks[description] = self.bars.add_task(description, total=total, **self._fields)
        self.bars.update(self._tasks[description], completed=done, total=total, updated=time.monotonic())

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def clear(self) -> None:
        """Remove the bars of loops that did not finish."""
        for description in list(self._tasks):
            self.bars.remove_task(self._tasks.pop(description))


def count_display(console: Console | None = None) -> Progress:
    """Return an empty progress display for `CountBars`, with the time left."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), _TimeLeft())
    return Progress(*columns, console=console, transient=True)


class _TimeLeft(ProgressColumn):
    """Time left at the mean speed until now, which rich's column knows only after several items."""

    def render(self, task: Task) -> Text:
        if not task.completed or task.total is None or task.start_time is None:
            return Text("")
        updated = task.fields.get("updated", task.start_time)
        left = (updated - task.start_time) / task.completed * (task.total - task.completed)
        return Text(
            f"{format_duration(max(left - (time.monotonic() - updated), 0.0))} left", style="progress.remaining"
        )
