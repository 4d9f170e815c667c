"""Decisions of a study with `--until decided`.

All decisions follow from the configuration and the predictions of finished runs. They are not read from a file, so a study
that is resumed, or reported on again, repeats the decisions of earlier rounds and continues with the next one.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from attngraft.counting import format_duration
from attngraft.results.crossed import Components
from attngraft.results.sequential import ALPHA, SequentialTest, adjusted_p, rounds_from
from attngraft.results.study import Difference, RoundVariant, UntilResult
from attngraft.results.wording import listed, plural
from attngraft.study.config import StudyConfig, Until
from attngraft.study.executors.base import FAILURE_FILE
from attngraft.study.plan import Records, run_folder
from attngraft.study.predictions import RunStatistics, paired, read_statistics_of
from attngraft.study.verdict import estimate_all
from attngraft.tasks.task import Task
from attngraft.training.build import task_of

T = TypeVar("T")
RunKey = tuple[str, int]  # variant and seed
#: variant -> seed -> statistics of the finished run
Statistics = Mapping[str, Mapping[int, RunStatistics]]


def decide(
    config: StudyConfig,
    until: Until,
    task: Task,
    statistics: Statistics,
    failed: Collection[RunKey],
    *,
    known: dict[tuple[str, int], Components | None] | None = None,
) -> tuple[SequentialTest, list[str]]:
    """Return the decisions of all complete rounds, and the variants that were excluded because a run failed.

    Args:
        config: the study.
        until: its `until`.
        task: the task.
        statistics: of all finished runs.
        failed: runs that failed. Later rounds leave out their variants; if a baseline's run failed, there are none.
        known: differences by variant and number of seeds, to which those that are missing are added.
    """
    baseline = config.baseline.name
    names = [variant.name for variant in config.variants if not variant.is_baseline]
    margin = _margin(until, task)
    test = SequentialTest(names, first=len(config.seeds), margin=margin, higher_is_better=task.higher_is_better)
    excluded: list[str] = []
    known = {} if known is None else known
    while (count := test.seeds) is not None:
        seeds = config.all_seeds[:count]
        for name in list(test.undecided):
            if any((name, seed) in failed and seed not in statistics[name] for seed in seeds):
                test.exclude(name)
                excluded.append(name)
        if not all(seed in statistics[name] for name in [baseline, *test.undecided] for seed in seeds):
            break
        for name in test.undecided:
            if (name, count) not in known:
                known[name, count] = _difference(statistics, baseline, name, seeds, task)
        if test.undecided:
            test.add({name: known[name, count] for name in test.undecided})
    return test, excluded


def _margin(until: Until, task: Task) -> float | None:
    """Return the margin in the unit of the stored metric: of 1 for shares, whose margin is given in points."""
    share = task.primary in task.metrics and task.metrics[task.primary].share
    return None if until.margin is None else until.margin * (0.01 if share else 1.0)


def _difference(
    statistics: Statistics, baseline: str, name: str, seeds: Sequence[int], task: Task
) -> Components | None:
    """Return the variance components of the difference in the primary metric; None if it is undefined."""
    runs = paired(*({seed: statistics[each][seed] for seed in seeds} for each in (baseline, name)))
    if not all(task.primary in run.statistics for side in runs for run in side.values()):
        return None
    before, after = ({seed: run.statistics[task.primary] for seed, run in side.items()} for side in runs)
    estimate = estimate_all([(before, after)])[0]
    return None if estimate is None else estimate.components


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcomes:
    """Decisions of a study, and the seeds that they are based on."""

    result: UntilResult
    seeds: Mapping[str, Sequence[int]]  #: by variant, including the baseline
    rounds: tuple[int, ...]

    def of_decisions(self, runs: Mapping[str, Mapping[int, T]]) -> dict[str, dict[int, T]]:
        """Return the values of `runs`, by variant and seed, for the runs that decisions are based on."""
        return {name: {s: each for s, each in by.items() if s in self.seeds[name]} for name, by in runs.items()}

    def difference(self, name: str, difference: Difference) -> Difference:
        """Return the difference with the verdict, the interval and the corrected p-value of the variant's last test."""
        last = self.result.last(name)
        if last is None:
            failed = name in self.result.failed
            why = f"not tested, because {'a run of the first round failed' if failed else 'the first round is not finished'}"
            if difference.interval is not None:
                why += "; its 95% interval is not corrected"
            return dataclasses.replace(difference, verdict="inside the noise", p_holm=None, why=why)
        count, test = last
        decision = "given up" if test.decision == "unlikely to be decided" else test.decision
        return dataclasses.replace(
            difference,
            verdict=test.decision if test.decision == "better" or test.decision == "worse" else "inside the noise",
            interval=test.interval,
            p_holm=self._corrected(count, test),
            why=f"{decision} after {plural(count, 'seed')}: {_interval_text(test)}",
            detectable=None,  # for a fixed number of seeds
        )

    def _corrected(self, count: int, test: RoundVariant) -> float | None:
        """Return the p-value corrected for rounds and variants, at most 0.05 if the variant is called better or worse."""
        if test.p_value is None:
            return None
        others = next(each.variants for each in self.result.rounds if each.seeds == count)
        earlier = [each for each in others if each.p_value is not None and each.p_value <= test.p_value]
        index = self.rounds.index(count)
        return max(
            min(1.0, each.tests * adjusted_p(each.p_value, self.rounds, index))
            for each in earlier
            if each.p_value is not None
        )


def _interval_text(test: RoundVariant) -> str:
    if test.interval is None:
        return "the noise between seeds cannot be estimated"
    where = "lies above" if test.interval.low > 0 else "lies below" if test.interval.high < 0 else "contains"
    return f"its interval at the level {test.level:.2g}, corrected for rounds and variants, {where} zero"


def until_outcomes(config: StudyConfig, until: Until, task: Task, statistics: Statistics) -> Outcomes:
    """Return the decisions of a study, from its finished runs."""
    failed, baseline = _failed_runs(config), config.baseline.name
    test, excluded = decide(config, until, task, statistics, failed)
    if any(name == baseline for name, _ in failed):
        excluded.append(baseline)
    result = UntilResult(
        rounds=test.done,
        most_seeds=len(config.all_seeds),
        margin=_margin(until, task),
        budget=until.budget,
        failed=excluded,
    )
    seeds: dict[str, Sequence[int]] = {}
    for variant in config.variants:
        last = result.last(variant.name)
        seeds[variant.name] = config.seeds if last is None else config.all_seeds[: last[0]]
    if test.done:
        seeds[baseline] = config.all_seeds[: test.done[-1].seeds]
    return Outcomes(result=result, seeds=seeds, rounds=rounds_from(len(config.seeds)))


def decisive_runs(config: StudyConfig, records: Records) -> Records:
    """Return the finished runs that decisions are based on; without `until`, all."""
    first = next((record for by_seed in records.values() for record in by_seed.values()), None)
    if config.until is None or first is None:
        return records
    task = task_of(first)
    statistics = read_statistics_of(records, task)
    return until_outcomes(config, config.until, task, statistics).of_decisions(records)


def _failed_runs(config: StudyConfig) -> set[RunKey]:
    """Return the runs whose last attempt failed."""
    return {
        (variant.name, seed)
        for variant in config.variants
        for seed in config.all_seeds
        if (run_folder(config.out, variant, seed) / FAILURE_FILE).is_file()
    }


def until_notes(result: UntilResult, *, baseline: str) -> list[str]:
    """Return the report's notes on rounds; `baseline` is the baseline's name."""
    notes = [
        f"Seeds were added in rounds, at most {result.most_seeds}. Intervals, p-values and verdicts are corrected for the "
        f"repeated tests and for the number of variants, so that a study calls any equal variant better or worse with a "
        f"probability of at most {100 * ALPHA:g}%. Variants have different numbers of seeds: their means are over their own "
        "seeds, and differences are over the seeds that they share with the baseline. Differences in other metrics are not "
        "corrected for rounds."
    ]
    last = result.rounds[-1] if result.rounds else None
    if last is not None and last.seeds < result.most_seeds and not result.failed:
        left = [test.variant for test in last.variants if test.decision == "undecided"]
        end = "interrupted" if result.budget is None else f"ended by the budget of {format_duration(result.budget)}"
        more = "" if result.budget is None else ", with a larger --budget,"
        if left:
            notes.append(
                f"Undecided: {listed(left)}. The rounds were {end}; rerun the same command{more} to continue them."
            )
    if result.failed:
        after = "no later round started" if baseline in result.failed else "later rounds left it out"
        notes.append(f"A run of {listed(result.failed)} failed, and {after}; rerun the same command to retry.")
    return notes
