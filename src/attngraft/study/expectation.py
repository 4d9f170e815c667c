"""What halving is expected to leave of a study, for estimates and time budgets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from attngraft.errors import UsageError
from attngraft.study.ladder import expected_share, rungs
from attngraft.study.schedule import PlannedRun

if TYPE_CHECKING:
    from attngraft.study.config import StudyConfig


def share_of(config: StudyConfig, runs: Sequence[PlannedRun]) -> Callable[[int], float]:
    """The part of so many epochs for which a variant is trained on average."""
    schedule, halving = runs[0].recipe.schedule, config.halving

    def share(epochs: int) -> float:
        if halving is None:
            return 1.0
        try:
            there = dataclasses.replace(schedule, epochs=epochs)
            return expected_share(halving, there, variants=len(config.variants) - 1)
        except (UsageError, ValueError):  # no room for a rung, or for the warm-up: nothing is spared
            return 1.0

    return share


def expected(config: StudyConfig, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """The runs as if those epochs had been trained already that will be spared, evenly over the variants."""
    epochs = runs[0].recipe.schedule.epochs
    spared = round(epochs * (1 - share_of(config, runs)(epochs)))
    return [
        run if run.variant.is_baseline else dataclasses.replace(run, epochs_done=max(run.epochs_done, spared))
        for run in runs
    ]


def how(config: StudyConfig, runs: Sequence[PlannedRun]) -> str:
    """What is special about the way the runs are made, in words.

    Raises:
        UsageError: halving finds no room for a rung.
    """
    if config.halving is None:
        return ""
    epochs = ", ".join(str(rung) for rung in rungs(config.halving, runs[0].recipe.schedule))
    return f"halving: after epoch {epochs} about one in {config.halving.eta} variants goes on"
