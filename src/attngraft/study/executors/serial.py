"""One run after the other, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attngraft.study.executors.trial import carry_out
from attngraft.study.executors.work import Crew, Outcome, Train, Work

if TYPE_CHECKING:
    from attngraft.training.progress import Progress
    from attngraft.training.recipe import Recipe


@dataclass(frozen=True)
class Serial:
    """What a study does unless it is told otherwise."""

    def at_once(self, recipe: Recipe) -> int:
        return 1

    @contextmanager
    def crew(self, *, train: Train, recipe: Recipe, out: Path) -> Iterator[Crew]:
        yield _Alone(train)


class _Alone:
    slots = 1

    def __init__(self, train: Train) -> None:
        self._train = train
        self._next: tuple[Work, Progress] | None = None

    def start(self, work: Work, progress: Progress) -> None:
        self._next = (work, progress)

    def wait(self) -> Sequence[tuple[Work, Outcome]]:
        if self._next is None:
            return []
        work, progress = self._next
        outcome = carry_out(work, self._train, progress)
        self._next = None
        return [(work, outcome)]

    def stop(self) -> Sequence[tuple[Work, Outcome]]:
        """What was interrupted outside of training, if anything was."""
        left, self._next = self._next, None
        return [] if left is None else [(left[0], Outcome(kind="stopped"))]
