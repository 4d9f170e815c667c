"""Output of commands: JSON and tables on standard output, progress bars on standard error."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from attngraft.suggest import visible

if TYPE_CHECKING:
    from rich.progress import Progress


T = TypeVar("T")


def print_json(value: object) -> None:
    echo(json.dumps(value, indent=2, ensure_ascii=False))


def echo(text: object, *, err: bool = False) -> None:
    """Print a line in which control characters are visible."""
    typer.echo(visible(str(text)), err=err)


class TerminalConsole(Console):
    """Console that makes control characters of the printed text visible."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


class TerminalFormatter(logging.Formatter):
    """Formatter of log records that makes their control characters visible."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def command_line() -> str:
    """Return the running command, quoted for a shell."""
    return shlex.join(["attngraft", *sys.argv[1:]])


def is_first_process() -> bool:
    """Return whether this is the first process of a launcher, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def output_console(width: int = 140, *, highlight: bool = False) -> Console:
    """Return a console as wide as the terminal, or of `width` columns if there is none."""

    return TerminalConsole(highlight=highlight, width=None if sys.stdout.isatty() else width)


def print_rows(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """Print rows as a table; their keys are the headings."""

    table = Table(title=title, title_justify="left")
    for column in rows[0] if rows else ():
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(escape(visible(_cell(value))) for value in row.values()))
    output_console().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name}={shown}" for name, shown in value.items()) or "-"
    return ", ".join(value) if isinstance(value, list | tuple) else str(value)


def progress_bars(*, described: bool = True) -> Progress:
    """Return transient progress bars on standard error, shown if that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = TerminalConsole(stderr=True)
    description = [TextColumn("{task.description}")] if described else []
    columns = (*description, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def counts_displayed() -> Iterator[None]:
    """Context manager that shows the progress of long loops: bars on a terminal, log lines elsewhere."""
    from attngraft.counting import CountBars, CountLines, count_display, counts_shown

    console = TerminalConsole(stderr=True)
    if not is_first_process():
        yield
    elif console.is_terminal:
        with count_display(console) as bars, counts_shown(CountBars(bars)):
            yield
    else:
        with counts_shown(CountLines()):
            yield


def announce_imports() -> None:
    """Print that PyTorch is being loaded, which takes seconds, unless it is loaded already."""
    if "torch" not in sys.modules and is_first_process():
        echo("Loading PyTorch ...", err=True)


def progress_display(
    live: Callable[[Console], AbstractContextManager[T]], log: Callable[[], T], silent: Callable[[], T]
) -> AbstractContextManager[T]:
    """Return a live display on a terminal and log lines elsewhere; processes after the first show nothing."""

    console = TerminalConsole(stderr=True)
    if not is_first_process():
        return nullcontext(silent())
    return live(console) if console.is_terminal else nullcontext(log())


@contextmanager
def images_bar(total: int, description: str) -> Iterator[Callable[[int], None]]:
    """Show the number of images processed in the block, and yield a function that adds to it."""
    from attngraft.counting import count

    done = 0

    def advance(images: int) -> None:
        nonlocal done
        done += images
        count(description, done, total)

    with counts_displayed():
        if total:
            count(description, 0, total)
        yield advance
