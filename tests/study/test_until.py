"""Studies that add seeds until every variant is decided: rounds, spending, resuming, budgets and refusals."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from attngraft.errors import FolderError, UsageError
from attngraft.report.page import report_html
from attngraft.report.rounds import rounds_table
from attngraft.results.sequential import ALPHA, MOST_SEEDS
from attngraft.results.study import UntilResult
from attngraft.results.wording import interval_name, until_text
from attngraft.study import (
    StudyConfig,
    StudyResult,
    compare,
    example_images,
    incomplete,
    load_result,
    prepare,
    report_only,
    study_from_dict,
)
from attngraft.study.decisions import decisive_runs
from attngraft.study.executors import Processes
from attngraft.study.plan import finished_runs, resolve_runs
from attngraft.study.progress import LiveStudy
from attngraft.study.runner import write_study
from attngraft.study.until import UntilQueue, until_plan
from proof.faults.process import forkserver

from .fakes import EXAMPLES, FakeTrainer, study, tools

GRAFTS = ["cb_s", "horizontal", "vertical"]
GAINS = {"cb_s": 0.2, "horizontal": 0.05, "vertical": -0.2}


class Noisy(FakeTrainer):
    """Each run answers some examples at random, so that seeds differ by about one point."""

    def _scores(self, spec: str, seed: int, *, progress: float) -> np.ndarray:
        difficulty = np.random.default_rng(7).random(EXAMPLES)
        generator = np.random.default_rng([seed, *spec.encode()])
        accuracy = (0.6 + self.gains.get(spec, 0.0) + generator.normal(0, 0.01)) * progress
        return (difficulty + generator.normal(0, 0.05, EXAMPLES) < accuracy).astype(float)


class Killed(Noisy):
    """Its process is killed (SIGKILL) in the second epoch of one run."""

    def __init__(self, dies: tuple[str, int]) -> None:
        super().__init__(GAINS)
        self.dies = dies

    def during(self, spec: str, seed: int, epoch: int, folder: Path) -> None:
        if (spec, seed) == self.dies and epoch == 2:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(out: Path, dies: tuple[str, int]) -> None:
    compare(rounds(out), tools=tools(Killed(dies)), costs=False)


def rounds(out: Path, **changes: Any) -> StudyConfig:
    return study(out, **{"grafts": GRAFTS, "seeds": 3, "until": "decided", **changes})


def until_of(result: StudyResult) -> UntilResult:
    assert result.until is not None
    return result.until


def decisions(result: StudyResult) -> Mapping[str, tuple[int, str]]:
    """The number of seeds and the decision of each variant's last test."""
    found = {}
    for variant in result.variants:
        if (last := until_of(result).last(variant.name)) is not None:
            found[variant.name] = last[0], last[1].decision
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyConfig, StudyResult, Noisy]:
    """A study that ended, for tests that only look at it."""
    trainer, config = Noisy(GAINS), rounds(tmp_path_factory.mktemp("until"))
    return config, compare(config, tools=tools(trainer)), trainer


def test_undecided_variants_get_more_seeds_and_the_baseline_all(
    whole: tuple[StudyConfig, StudyResult, Noisy],
) -> None:
    config, result, trainer = whole
    found, until = decisions(result), until_of(result)
    assert found["cb_s"][1] == "better"
    assert found["vertical"][1] == "worse"
    assert max(found["cb_s"][0], found["vertical"][0]) < found["horizontal"][0]
    runs = {variant.name: [run.seed for run in variant.runs] for variant in result.variants}
    last = until.rounds[-1].seeds
    assert runs == {
        "baseline": [*range(last)],
        **{name: [*range(seeds)] for name, (seeds, _) in found.items()},
    }
    assert result.seeds == [*range(last)]
    assert len(trainer.calls) == sum(map(len, runs.values())) == until.rounds[-1].runs
    assert len(set(trainer.calls)) == len(trainer.calls)
    assert not incomplete(result)
    assert load_result(config.out) == result


def test_spending_and_intervals_agree_with_the_decisions(whole: tuple[StudyConfig, StudyResult, Noisy]) -> None:
    _, result, _ = whole
    until = until_of(result)
    assert [each.spent for each in until.rounds] == pytest.approx(
        [ALPHA * each.seeds / MOST_SEEDS for each in until.rounds]
    )
    for variant in result.variants[1:]:
        last, difference = until.last(variant.name), variant.difference
        assert last is not None
        assert difference is not None
        assert difference.interval == last[1].interval
        assert difference.interval is not None
        assert difference.mean == pytest.approx(difference.interval.point)
        called = last[1].decision in ("better", "worse")
        assert difference.verdict == (last[1].decision if called else "inside the noise")
        assert difference.p_holm is not None
        assert called == (difference.p_holm <= ALPHA) == (not difference.interval.low <= 0 <= difference.interval.high)
        assert f"after {last[0]} seeds" in difference.why


def test_what_a_reader_is_told(whole: tuple[StudyConfig, StudyResult, Noisy]) -> None:
    config, result, _ = whole
    assert any("Seeds were added in rounds, at most 20" in note for note in result.notes)
    assert until_text(result, "cb_s").startswith("decided after ")
    assert rounds_table(result) is not None
    page = report_html(result)
    assert "Rounds and spending" in page
    assert until_text(result, "cb_s") in page
    assert "Corrected interval" in page
    assert "decision" in (config.out / "results.csv").read_text().splitlines()[0]
    again = report_only(config, tools=tools(FakeTrainer()))
    assert again.until == result.until
    assert [variant.difference for variant in again.variants] == [variant.difference for variant in result.variants]


def test_a_finished_study_trains_and_opens_nothing(whole: tuple[StudyConfig, StudyResult, Noisy]) -> None:
    config, result, _ = whole
    again, opened = Noisy(GAINS), []
    used = dataclasses.replace(tools(again), open_data=opened.append)
    assert compare(config, tools=used).until == result.until
    assert (again.calls, opened) == ([], [])


@pytest.mark.slow
def test_kill_9_in_any_round_changes_no_decision(whole: tuple[StudyConfig, StudyResult, Noisy], tmp_path: Path) -> None:
    """The study's process is killed once in every round, in the baseline's run or in a variant's."""
    expected = until_of(whole[1])
    assert len(expected.rounds) > 2
    for number, each in enumerate(expected.rounds):
        process = forkserver.Process(
            target=killed, args=(tmp_path, (("none", "horizontal")[number % 2], each.seeds - 1))
        )
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert compare(rounds(tmp_path), tools=tools(Noisy(GAINS))).until == expected


def test_an_interrupt_in_any_round_changes_no_decision(
    whole: tuple[StudyConfig, StudyResult, Noisy], tmp_path: Path
) -> None:
    """Interrupted in every round, in the baseline's run or in a variant's; spending is not reset."""
    expected, config = until_of(whole[1]), rounds(tmp_path)
    for number, each in enumerate(expected.rounds[:4]):
        spec = ("none", "horizontal")[number % 2]
        with pytest.raises(KeyboardInterrupt):
            compare(config, tools=tools(Noisy(GAINS, stops=(spec, each.seeds - 1))), costs=False)
        part = until_of(report_only(config, tools=tools(FakeTrainer())))
        assert part.rounds == expected.rounds[:number]
    assert compare(config, tools=tools(Noisy(GAINS))).until == expected


@pytest.mark.slow
def test_concurrent_runs_decide_the_same(whole: tuple[StudyConfig, StudyResult, Noisy], tmp_path: Path) -> None:
    result = compare(rounds(tmp_path), tools=tools(Noisy(GAINS)), executor=Processes(jobs=2))
    assert result.until == whole[1].until


def test_a_margin_decides_equal_variants(tmp_path: Path) -> None:
    gains = {**GAINS, "horizontal": 0.0}
    result = compare(rounds(tmp_path, margin=8), tools=tools(Noisy(gains)))
    assert decisions(result)["horizontal"][1] == "within the margin"
    assert until_of(result).margin == pytest.approx(0.08)
    assert result.variants[2].difference is not None
    assert result.variants[2].difference.verdict == "inside the noise"
    assert "within ±8 points" in report_html(result)


def test_a_variant_whose_run_fails_is_left_out_until_a_retry(
    whole: tuple[StudyConfig, StudyResult, Noisy], tmp_path: Path
) -> None:
    config = rounds(tmp_path)
    result = compare(config, tools=tools(Noisy(GAINS, fails={("horizontal", 3)})))
    assert until_of(result).failed == ["horizontal"]
    assert incomplete(result)
    assert decisions(result)["cb_s"][1] == "better"
    assert decisions(result)["horizontal"] == (3, "undecided")
    assert any("A run of horizontal failed" in note for note in result.notes)
    healed = compare(config, tools=tools(Noisy(GAINS)))
    assert healed.until == whole[1].until
    assert not incomplete(healed)


def test_without_the_baseline_nothing_goes_on(tmp_path: Path) -> None:
    trainer = Noisy(GAINS, fails={("none", 3)})
    result = compare(rounds(tmp_path), tools=tools(trainer))
    assert incomplete(result)
    assert [each.seeds for each in until_of(result).rounds] == [3]
    assert max(seed for _, seed in trainer.calls) == 3
    assert any("A run of baseline failed, and no later round started" in note for note in result.notes)


def test_the_budget_ends_before_a_round_that_does_not_fit(tmp_path: Path) -> None:
    """Runs take 3 s: the first round 36 s, and the next one, of four runs, 12 s."""
    config = rounds(tmp_path, budget="40s")
    result = compare(config, tools=tools(Noisy(GAINS), epoch_seconds=0.5))
    assert [each.seeds for each in until_of(result).rounds] == [3]
    assert not incomplete(result)
    assert any("The rounds were ended by the budget of 40 s" in note for note in result.notes)
    assert compare(config, tools=tools(again := Noisy(GAINS))).until == result.until
    assert again.calls == []
    more = compare(rounds(tmp_path, budget="50s"), tools=tools(Noisy(GAINS)), costs=False)
    assert [each.seeds for each in until_of(more).rounds] == [3, 4]


def test_the_plan_tells_the_worst_cost(tmp_path: Path) -> None:
    prepared = prepare(rounds(tmp_path), tools=tools(FakeTrainer()))
    assert len(prepared.runs) == 4 * MOST_SEEDS
    assert prepared.seconds == pytest.approx(4 * 3 * (1 + 3))
    assert len(prepared.planned) == 12
    plan = until_plan(prepared)
    assert "80 runs, about 5 min" in plan
    assert "at most" in plan
    assert "starts with 3 seeds (12 runs) and adds one seed at a time" in plan
    assert "up to 20" in plan
    fixed = prepare(rounds(tmp_path, until="off"), tools=tools(FakeTrainer()))
    assert (until_plan(fixed), len(fixed.runs)) == ("", 12)


def test_seeds_of_later_rounds_follow_the_given_ones(tmp_path: Path) -> None:
    assert rounds(tmp_path, seeds="7,5").all_seeds == (7, 5, *range(8, 26))
    assert rounds(tmp_path, until=None).all_seeds == (0, 1, 2)


def test_it_is_written_to_the_study_file(tmp_path: Path) -> None:
    config = rounds(tmp_path, margin=0.5, budget="2h")
    plain = config.to_dict()
    assert (plain["until"], plain["margin"], plain["budget"]) == ("decided", 0.5, "7200s")
    assert study_from_dict(plain) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"until": None, "margin": 0.5}, "--margin requires --until decided"),
        ({"until": "off", "budget": "2h"}, "--budget requires --until decided"),
        ({"until": None, "margin": 1, "budget": "2h"}, "--margin and --budget require --until decided"),
        ({"margin": -0.5}, "margin: must be above zero"),
        ({"margin": 0}, "margin: must be above zero"),
        ({"until": "done"}, "until: expected decided, or off"),
        ({"seeds": 1}, "starts with 2 to 19 seeds"),
        ({"seeds": 20}, "starts with 2 to 19 seeds"),
        ({"halving": 3}, "--halving stops runs early; use one of them"),
        ({"time_budget": "10m"}, "set --epochs, and limit the time with --budget"),
        ({"epochs": 0}, "remove until"),
        ({"budget": "2"}, "expected a duration"),
        ({"grafts": []}, "add a variant with --graft"),
    ],
)
def test_refused_configurations(tmp_path: Path, changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rounds(tmp_path, **changes)


def test_a_budget_that_does_not_fit_one_round(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    with pytest.raises(UsageError, match=r"does not fit one round: the first round is 12 runs, which take about 48 s"):
        compare(rounds(tmp_path / "out", budget="40s"), tools=tools(trainer))
    assert trainer.calls == []
    assert not (tmp_path / "out").exists()


def test_a_budget_needs_epochs(tmp_path: Path) -> None:
    config = rounds(tmp_path, budget="1h", epochs=None, set=["schedule.steps=10"])
    with pytest.raises(UsageError, match="--budget counts epochs"):
        prepare(config, tools=tools(FakeTrainer()))


def test_rounds_cannot_start_again_with_other_seeds(
    whole: tuple[StudyConfig, StudyResult, Noisy],
) -> None:
    other = dataclasses.replace(whole[0], seeds=(0, 1, 2, 3))
    with pytest.raises(FolderError, match="started with seeds 0, 1, 2"):
        prepare(other, tools=tools(FakeTrainer()))
    with pytest.raises(FolderError, match="started with seeds 0, 1, 2"):
        report_only(other, tools=tools(FakeTrainer()))


def test_a_fixed_study_in_between_does_not_allow_other_seeds(tmp_path: Path) -> None:
    compare(rounds(tmp_path), tools=tools(Noisy(GAINS, fails={("none", 3)})), costs=False)
    compare(rounds(tmp_path, until="off", seeds=5), tools=tools(Noisy(GAINS)), costs=False)
    with pytest.raises(FolderError, match="the rounds of this study started with seeds 0, 1, 2"):
        prepare(rounds(tmp_path, seeds=5), tools=tools(FakeTrainer()))
    assert until_of(report_only(rounds(tmp_path), tools=tools(FakeTrainer()))).rounds[0].seeds == 3


def test_after_a_fixed_study_rounds_start_with_its_seeds(tmp_path: Path) -> None:
    compare(rounds(tmp_path, until="off", seeds=5), tools=tools(Noisy(GAINS)), costs=False)
    with pytest.raises(FolderError, match="this study ran with seeds 0, 1, 2, 3, 4"):
        prepare(rounds(tmp_path), tools=tools(FakeTrainer()))
    prepare(rounds(tmp_path, seeds=5), tools=tools(FakeTrainer()))


def test_without_runs_seeds_may_change(tmp_path: Path) -> None:
    write_study(rounds(tmp_path))
    assert prepare(rounds(tmp_path, seeds=5), tools=tools(FakeTrainer())).seeds == (0, 1, 2, 3, 4)


class Split:
    """A task that has a random split and no fitted files."""

    def save_split(self, path: Path) -> bool:
        path.write_text("split")
        return True

    def save_files(self, folder: Path) -> None:
        pass


def test_only_runs_that_start_get_files(tmp_path: Path) -> None:
    study = resolve_runs(rounds(tmp_path))
    opened = SimpleNamespace(task=Split(), data=SimpleNamespace(test=None))
    study = dataclasses.replace(study, benchmark=opened)  # type: ignore[arg-type]
    assert study.until is not None
    queue = UntilQueue(study, study.until, concurrency=2)
    started = [task.run.folder for task in (queue.next(), queue.next()) if task is not None]
    assert sorted(path.parent for path in (tmp_path / "runs").rglob("split.csv")) == sorted(started)


def test_the_live_table_adds_seeds_that_start(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    compare(rounds(tmp_path), tools=tools(Noisy(GAINS, fails={("none", 4)})), progress=(live := LiveStudy(console)))
    with console.capture() as captured:
        console.print(live._draw())
    heads = captured.get()
    assert all(f"seed {seed}" in heads for seed in range(5))
    assert "seed 5" not in heads


def test_before_the_first_round_is_complete_intervals_are_not_corrected(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        compare(rounds(tmp_path), tools=tools(Noisy(GAINS, stops=("vertical", 2))), costs=False)
    result = report_only(rounds(tmp_path), tools=tools(FakeTrainer()))
    assert until_of(result).rounds == []
    assert interval_name(result) == "95% interval"
    assert result.variants[1].difference is not None
    assert "its 95% interval is not corrected" in result.variants[1].difference.why


def test_runs_without_a_decision_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left by a fixed number of seeds; cb_s is decided with fewer."""
    compare(rounds(tmp_path, until="off", seeds=8), tools=tools(Noisy(GAINS)), costs=False)
    (tmp_path / "study.yaml").unlink()
    config = rounds(tmp_path)
    finished, result = finished_runs(config), report_only(config, tools=tools(FakeTrainer()))
    used = decisive_runs(config, finished)
    shown: list[list[int]] = []
    monkeypatch.setattr(example_images, "_selected", lambda before, after, *_: shown.extend(map(list, (before, after))))
    example_images.example_images(config, result)
    best = next(variant for variant in result.variants if variant.name == "cb_s")
    assert shown == [[run.seed for run in each.runs] for each in (result.variants[0], best)]
    assert len(finished["cb_s"]) == 8
    assert list(used["cb_s"]) == [run.seed for run in result.variants[1].runs]
    assert len(used["cb_s"]) < 8
