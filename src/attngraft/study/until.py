"""Training order of a study with `--until decided`: seeds are added in rounds to the variants that are undecided."""

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np

from attngraft.counting import format_duration
from attngraft.errors import UsageError
from attngraft.results.crossed import Components
from attngraft.results.study import Round
from attngraft.results.wording import plural
from attngraft.study.config import Until
from attngraft.study.decisions import RunKey, decide
from attngraft.study.executors.base import Outcome, RunTask
from attngraft.study.plan import PlannedRun, Study
from attngraft.study.predictions import RunStatistics, read_statistics
from attngraft.study.throughput import Estimate
from attngraft.training.build import build_task
from attngraft.training.run_folder import read_run

log = logging.getLogger(__name__)


class UntilQueue:
    """Queue of a study's tasks in rounds of seeds, with the interface of `RunQueue`.

    The baseline is trained with every seed of an undecided variant. The next round starts when all runs of a round have
    ended, if the budget allows it.

    Args:
        study: the study.
        until: its `until`.
        concurrency: number of runs that are trained at the same time.
    """

    def __init__(self, study: Study, until: Until, *, concurrency: int) -> None:
        self._study, self._until, self._concurrency = study, until, concurrency
        self._task = build_task(study.baseline_recipe)
        self._runs = {(run.variant.name, run.seed): run for run in study.runs}
        self._active: set[RunKey] = set()
        self._failed: set[RunKey] = set()
        self._statistics: dict[str, dict[int, RunStatistics]] = {variant.name: {} for variant in study.variants}
        self._seconds: dict[RunKey, float] = {}
        self._reported: int | None = None  # rounds
        self._differences: dict[tuple[str, int], Components | None] = {}
        for key, run in self._runs.items():
            if run.state == "finished":
                self._read(key)
        self._round = self._next_round()

    def next(self) -> RunTask | None:
        baseline = self._study.baseline.name
        for key in self._round:
            if any((baseline, seed) in self._failed for _, seed in self._round):
                return None  # nothing can be compared with it
            if key not in self._active and self._is_open(key):
                self._active.add(key)
                run = self._runs[key]
                self._study.save_data_files([run])  # not for runs of seeds that no round may reach
                return RunTask(run=run)
        return None

    def done(self, task: RunTask, outcome: Outcome) -> None:
        key = task.run.variant.name, task.run.seed
        self._active.remove(key)
        if outcome.kind == "failed":
            self._failed.add(key)
        else:
            self._read(key)
        if not self._active and not any(map(self._is_open, self._round)):
            self._round = self._next_round()

    @property
    def planned(self) -> list[PlannedRun]:
        """Finished runs, and those of the round that is next."""
        return [run for key, run in self._runs.items() if key in self._round or run.state == "finished"]

    def seed_is_open(self, seed: int) -> bool:
        """Return whether runs of `seed` are waiting or active, or may be added by a later round."""
        planned = [each for _, each in self._round]
        later = bool(planned) and self._study.all_seeds.index(seed) > max(map(self._study.all_seeds.index, planned))
        return later or any(key[1] == seed and self._is_open(key) for key in self._round)

    def _is_open(self, key: RunKey) -> bool:
        return key not in self._seconds and key not in self._failed

    def _read(self, key: RunKey) -> None:
        record = read_run(self._runs[key].folder)
        self._seconds[key] = record.seconds
        self._statistics[key[0]][key[1]] = read_statistics(record, self._task)

    def _next_round(self) -> list[RunKey]:
        """Return the runs of the first incomplete round; empty if there is none or it does not fit into the budget."""
        test, _ = decide(self._study, self._until, self._task, self._statistics, self._failed, known=self._differences)
        if self._reported is not None and len(test.done) > self._reported:
            log.info("%s", _describe(test.done[-1]))
        self._reported = len(test.done)
        if test.seeds is None or not test.undecided:
            return []
        names, before = [self._study.baseline.name, *test.undecided], test.done[-1].seeds if test.done else 0
        planned = [(name, seed) for seed in self._study.all_seeds[before : test.seeds] for name in names]
        if test.done and self._until.budget is not None:
            earlier = self._study.all_seeds[:before]
            means = {name: np.mean([self._seconds[name, seed] for seed in earlier]) for name in names}
            spent, needed = self._spent(test.done), self._wall([float(means[name]) for name, _ in planned])
            if spent + needed > self._until.budget:
                log.info(
                    "the next round does not fit: it takes about %s, and %s of the budget are left",
                    format_duration(needed),
                    format_duration(max(self._until.budget - spent, 0)),
                )
                return []
        return planned

    def _spent(self, rounds: Sequence[Round]) -> float:
        """Return the seconds of training of complete rounds."""
        spent, before = 0.0, 0
        for each in rounds:
            names = [self._study.baseline.name, *(test.variant for test in each.variants)]
            seeds = self._study.all_seeds[before : each.seeds]
            spent += self._wall([self._seconds[name, seed] for name in names for seed in seeds])
            before = each.seeds
        return spent

    def _wall(self, seconds: Sequence[float]) -> float:
        """Return the time of a round whose runs take these seconds each."""
        return max([*seconds, sum(seconds) / self._concurrency])


def _describe(done: Round) -> str:
    decided = [f"{each.variant} {each.decision}" for each in done.variants if each.decision != "undecided"]
    left = sum(each.decision == "undecided" for each in done.variants)
    return f"after {plural(done.seeds, 'seed')}: {', '.join([*decided, f'{left} undecided'])}"


def planned_runs(study: Study) -> Sequence[PlannedRun]:
    """Return the runs to plan and estimate: all or, with `until`, finished ones and those of the next round.

    The budget is ignored. If all these runs are finished, no run is left to train.
    """
    if study.until is None:
        return study.runs
    return UntilQueue(study, dataclasses.replace(study.until, budget=None), concurrency=1).planned


def check_budget(study: Study, estimate: Estimate | None, *, concurrency: int) -> None:
    """Check that the first round fits into the budget.

    Raises:
        UsageError: it does not fit, or its time cannot be estimated.
    """
    if study.until is None or study.until.budget is None:
        return
    first = [run for run in study.runs if run.seed in study.seeds]
    if all(run.state == "finished" for run in first):
        return
    if estimate is None:
        raise UsageError("--budget requires a time estimate, which failed; remove it")
    each = [estimate.full_seconds([run], epochs=run.recipe.schedule.epochs) for run in first]
    needed = max([*each, sum(each) / concurrency])
    if needed > study.until.budget:
        raise UsageError(
            f"the budget of {format_duration(study.until.budget)} does not fit one round: the first round is "
            f"{plural(len(first), 'run')}, which take about {format_duration(needed)}; raise --budget, or use fewer seeds, "
            "variants or epochs"
        )


def until_plan(study: Study) -> str:
    """Describe the rounds for the plan; empty without `until`."""
    if study.until is None:
        return ""
    first, variants = len(study.seeds), len(study.variants)
    limit = "" if study.until.budget is None else f", within {format_duration(study.until.budget)} of training"
    most = "" if study.most_seconds is None else f", about {format_duration(study.most_seconds)}"
    return (
        f"--until decided starts with {first} seeds ({first * variants} runs) and adds one seed at a time to undecided "
        f"variants{limit}; at most, if no variant is decided early, up to {len(study.all_seeds)} seeds "
        f"({len(study.runs)} runs{most})"
    )
