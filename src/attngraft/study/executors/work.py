"""A piece of work, what becomes of it, and what an executor is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from attngraft.study.schedule import PlannedRun

if TYPE_CHECKING:
    from attngraft.training.progress import Progress
    from attngraft.training.recipe import Recipe

Train = Callable[..., Any]  #: `attngraft.training.loop.train`, or what takes its place


@dataclass(frozen=True, kw_only=True)
class Work:
    """A run to be made, to its end or to the end of an epoch."""

    run: PlannedRun
    until: int | None = None  #: stop after this epoch; None: go to the end


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a piece of work."""

    kind: Literal["finished", "paused", "failed", "stopped"]
    message: str = ""  #: the last epoch's first metric, or why the run failed
    deaths: tuple[str, ...] = ()  #: how each process ended that was lost over it before


class Crew(Protocol):
    """Those who are at work. Each piece that was started comes out of `wait` or `stop` once."""

    @property
    def slots(self) -> int:
        """How many pieces of work are taken at a time."""

    def start(self, work: Work, progress: Progress) -> None:
        """Take a piece of work; `progress` is told how it gets on while somebody waits."""

    def wait(self) -> Sequence[tuple[Work, Outcome]]:
        """Wait until something that was started has ended."""

    def stop(self) -> Sequence[tuple[Work, Outcome]]:
        """Ask everybody to save and stop; what is still under way ends here."""


class Executor(Protocol):
    """A way of carrying runs out."""

    def at_once(self, recipe: Recipe) -> int:
        """How many runs get on at full speed at the same time, for estimates."""

    def crew(self, *, train: Train, recipe: Recipe, out: Path) -> AbstractContextManager[Crew]:
        """Workers for the runs of a study.

        Args:
            train: the trainer; it must be picklable where work leaves this process.
            recipe: of any run of the study: its threads and loading processes are those of all.
            out: the study's folder.
        """
