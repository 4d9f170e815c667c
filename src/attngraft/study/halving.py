"""Asynchronous successive halving over the variants of a study, for large graft sets.

Every variant is trained, with all seeds, up to the first rung; `ladder` decides from there. The learning rate follows the
full schedule all along, a run that is stopped is only paused, and the baseline always goes to the end.

The order in which runs end decides who is promoted early, so with several runs at a time two studies may stop other
variants. What they train is the same. halving.json keeps the order, the scores and the decisions.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from attngraft.files import write_atomically
from attngraft.results.halving import HALVING_FILE, read_halving
from attngraft.study.executors.work import Outcome, Work
from attngraft.study.ladder import Ladder, rungs
from attngraft.study.schedule import PlannedRun, state_of
from attngraft.study.values import Halving

if TYPE_CHECKING:
    from attngraft.study.config import StudyConfig

_Key = tuple[str, int]  # variant and seed


class HalvingQueue:
    """Runs in the order of successive halving.

    Args:
        config: the study.
        halving: how it is halved.
        runs: as they were planned.

    Raises:
        UsageError: the epochs have no room for a rung.
        ConfigError: halving.json is damaged.
    """

    def __init__(self, config: StudyConfig, halving: Halving, runs: Sequence[PlannedRun]) -> None:
        self._out, self._seeds = config.out, config.seeds
        self._baseline = config.baseline.name
        self._names = [variant.name for variant in config.variants if not variant.is_baseline]
        self._runs: dict[_Key, PlannedRun] = {(run.variant.name, run.seed): run for run in runs}
        self._at_work: set[_Key] = set()
        self._failed: set[_Key] = set()
        self._ladder = self._continued(halving, runs[0])
        self._metric = self._ladder.result().metric
        self._climb()

    def next(self) -> Work | None:
        ready = [key for key in self._runs if self._ready(key)]
        if not ready:
            return None
        places = {name: place for place, name in enumerate([self._baseline, *self._names])}
        key = min(ready, key=lambda key: (-self._until(key[0]), places[key[0]], self._seeds.index(key[1])))
        self._at_work.add(key)
        until = self._until(key[0])
        return Work(run=self._runs[key], until=None if until == self._ladder.epochs else until)

    def done(self, work: Work, outcome: Outcome) -> None:
        from attngraft.training.run_folder import read_run

        name, seed = work.run.variant.name, work.run.seed
        self._at_work.remove((name, seed))
        if outcome.kind == "failed":
            self._failed.add((name, seed))
            self._ladder.lose(name)
        else:
            record = read_run(work.run.folder)
            self._runs[name, seed] = replace(work.run, epochs_done=len(record.epochs), state=state_of(record))
        self._climb()

    def left_of_seed(self, seed: int) -> bool:
        return any(key[1] == seed and (key in self._at_work or self._ready(key)) for key in self._runs)

    def _ready(self, key: _Key) -> bool:
        if key in self._at_work or key in self._failed or (key[0] != self._baseline and self._is_lost(key[0])):
            return False
        run = self._runs[key]
        whole = run.epochs_done == self._ladder.epochs  # every epoch is there, and what comes after them is not
        return run.state != "finished" and (run.epochs_done < self._until(key[0]) or whole)

    def _is_lost(self, name: str) -> bool:
        """Whether a run of this variant failed, so that it has no mean over the seeds."""
        return any((name, seed) in self._failed for seed in self._seeds)

    def _until(self, name: str) -> int:
        return self._ladder.epochs if name == self._baseline else self._ladder.until(name)

    def _climb(self) -> None:
        """Tell the ladder who has arrived, and write down what it decided."""
        for name in self._names:
            for rung in self._ladder.rungs:
                done = min(self._runs[name, seed].epochs_done for seed in self._seeds)
                if done >= rung and not self._is_lost(name) and not self._ladder.has_arrived(name, rung):
                    self._ladder.arrive(name, rung, self._score(name, rung))
        content = dataclasses.asdict(self._ladder.result())
        write_atomically(self._out / HALVING_FILE, json.dumps(content, indent=2) + "\n")

    def _score(self, name: str, rung: int) -> float | None:
        """Mean over seeds of the primary metric after epoch `rung`."""
        from attngraft.training.run_folder import read_run

        rows = [read_run(self._runs[name, seed].folder).epochs[rung - 1] for seed in self._seeds]
        values = [float(row.get(f"val/{self._metric}", math.nan)) for row in rows]
        mean = sum(values) / len(values)
        return mean if math.isfinite(mean) else None

    def _continued(self, halving: Halving, run: PlannedRun) -> Ladder:
        """A new ladder, or that of halving.json if it has the same rungs; decisions that were made stand."""
        from attngraft.training.build import build_task

        task, schedule = build_task(run.recipe), run.recipe.schedule
        found = rungs(halving, schedule)
        before = read_halving(self._out)
        if before is not None and (before.rungs, before.epochs, before.eta) == (found, schedule.epochs, halving.eta):
            ladder = Ladder.of(before, self._names)
            ladder.keep(before.standings)
            return ladder
        return Ladder(
            self._names,
            found,
            epochs=schedule.epochs,
            eta=halving.eta,
            metric=task.primary,
            higher_is_better=task.higher_is_better,
        )
