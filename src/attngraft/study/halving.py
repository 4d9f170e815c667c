"""Training order under asynchronous successive halving, for large sets of variants.

Every variant is trained with all seeds up to the first rung; after that, `Rungs` decides which variants continue. The
learning rate always follows the full schedule, so a stopped run is only paused. The baseline is always trained to the end.

Early promotions depend on the order in which runs end, so with concurrent runs, repetitions of a study may stop different
variants; the training of each run is the same. halving.json stores order, scores and decisions.
"""

import dataclasses
import json
import math

from attngraft.errors import UsageError
from attngraft.files import write_atomically
from attngraft.results.halving import HALVING_FILE, read_halving
from attngraft.study.config import Halving
from attngraft.study.executors.base import Outcome, RunTask
from attngraft.study.plan import PlannedRun, Study, run_state
from attngraft.study.rungs import Rungs, rung_epochs
from attngraft.training.build import build_task
from attngraft.training.profiler import BenchmarkBatch, Profiler
from attngraft.training.run_folder import read_run

_Key = tuple[str, int]  # variant and seed


def refuse_other_units(study: Study, benchmark: BenchmarkBatch) -> None:
    """Check that all variants measure the primary metric in the same units (`Measured.comparable`).

    Halving ranks the variants by it, and `--until decided` compares them after every round.

    Only variants with other task settings or another input than the baseline are evaluated, on one batch.

    Raises:
        UsageError: the metric of a variant has other units than the baseline's; the message names the variant.
    """
    expected: str | None = None
    for variant in study.variants:
        recipe = study.recipe_of(variant)
        own = benchmark.for_recipe(recipe)
        if own is benchmark:
            continue
        if expected is None:
            expected = Profiler(study.baseline_recipe, benchmark).units()
        units = Profiler(recipe, own).units()
        if units != expected:
            which = f" ({units}, not {expected})" if units and expected else ""
            option, compares = ("--halving", "ranks") if study.until is None else ("--until decided", "compares")
            raise UsageError(
                f"{option} {compares} variants by {own.task.primary}, and the variant {variant.name} measures it in other "
                f"units than the baseline{which}; use {option.split()[0]} off, another --metric, or remove the variant"
            )


class HalvingQueue:
    """Queue of a study's tasks in the order of successive halving, with the interface of `RunQueue`.

    Raises:
        UsageError: there are too few epochs for a rung.
        ConfigError: halving.json is damaged.
    """

    def __init__(self, study: Study, halving: Halving) -> None:
        self._out, self._seeds = study.out, study.seeds
        self._baseline = study.baseline.name
        self._names = [variant.name for variant in study.variants if not variant.is_baseline]
        self._runs: dict[_Key, PlannedRun] = {(run.variant.name, run.seed): run for run in study.runs}
        self._active: set[_Key] = set()
        self._failed: set[_Key] = set()
        task, schedule = build_task(study.baseline_recipe), study.baseline_recipe.schedule
        epochs = rung_epochs(halving, *study.schedules)
        before = read_halving(self._out)
        if before is not None and (before.rungs, before.epochs, before.eta) == (epochs, schedule.epochs, halving.eta):
            self._rungs = Rungs.replay(before, self._names)
            self._rungs.keep_promotions(before.standings)
        else:
            self._rungs = Rungs(
                self._names,
                epochs,
                total=schedule.epochs,
                eta=halving.eta,
                metric=task.primary,
                higher_is_better=task.higher_is_better,
            )
        self._update()

    def next(self) -> RunTask | None:
        ready = [key for key in self._runs if self._is_ready(key)]
        if not ready:
            return None
        order = {name: number for number, name in enumerate([self._baseline, *self._names])}
        # the furthest rung first
        key = min(ready, key=lambda key: (-self._limit(key[0]), order[key[0]], self._seeds.index(key[1])))
        self._active.add(key)
        limit = self._limit(key[0])
        return RunTask(run=self._runs[key], stop_after_epoch=None if limit == self._rungs.total else limit)

    def done(self, task: RunTask, outcome: Outcome) -> None:
        name, seed = task.run.variant.name, task.run.seed
        self._active.remove((name, seed))
        if outcome.kind == "failed":
            self._failed.add((name, seed))
            self._rungs.lose(name)
        else:
            record = read_run(task.run.folder)
            done = dataclasses.replace(task.run, epochs_done=len(record.epochs), state=run_state(record))
            self._runs[name, seed] = done
        self._update()

    def seed_is_open(self, seed: int) -> bool:
        return any(key[1] == seed and (key in self._active or self._is_ready(key)) for key in self._runs)

    def _is_ready(self, key: _Key) -> bool:
        if key in self._active or key in self._failed or (key[0] != self._baseline and self._has_failed(key[0])):
            return False
        run = self._runs[key]
        complete = run.epochs_done == self._rungs.total  # trained to the last epoch, but finished.json is missing
        return run.state != "finished" and (run.epochs_done < self._limit(key[0]) or complete)

    def _has_failed(self, name: str) -> bool:
        """Return whether a run of this variant failed, so that its mean over seeds cannot be computed."""
        return any((name, seed) in self._failed for seed in self._seeds)

    def _limit(self, name: str) -> int:
        return self._rungs.total if name == self._baseline else self._rungs.limit(name)

    def _update(self) -> None:
        """Add the scores of variants that reached a rung, and write halving.json."""
        for name in self._names:
            done = min(self._runs[name, seed].epochs_done for seed in self._seeds)
            for rung in self._rungs.epochs:
                if done >= rung and not self._has_failed(name) and not self._rungs.has(name, rung):
                    self._rungs.add(name, rung, self._score(name, rung))
        content = dataclasses.asdict(self._rungs.result())
        write_atomically(self._out / HALVING_FILE, json.dumps(content, indent=2) + "\n")

    def _score(self, name: str, rung: int) -> float | None:
        """Return the mean over seeds of the primary metric after epoch `rung`."""
        rows = [read_run(self._runs[name, seed].folder).epochs[rung - 1] for seed in self._seeds]
        mean = sum(float(row.get(f"val/{self._rungs.metric}", math.nan)) for row in rows) / len(rows)
        return mean if math.isfinite(mean) else None
