"""Output of commands: JSON and tables on standard output, progress bars on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def output_console(width: int = 140, *, highlight: bool = False) -> Console:
    """Return a console as wide as the terminal, or of `width` columns if there is none."""
    from rich.console import Console

    return Console(highlight=highlight, width=None if sys.stdout.isatty() else width)


def progress_bars(*, described: bool = True) -> Progress:
    """Return transient progress bars on standard error, shown if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    description = [TextColumn("{task.description}")] if described else []
    columns = (*description, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def images_bar(total: int, description: str) -> Iterator[Callable[[int], None]]:
    """Show a progress bar of images; yields a function that advances it."""
    with progress_bars() as bars:
        task = bars.add_task(description, total=total)
        yield lambda images: bars.advance(task, images)
