"""Studies that are halved: who is trained how far, what is said of it, and that it can be continued."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from attngraft.errors import ConfigError, UsageError
from attngraft.results.halving import HALVING_FILE, rank_at, read_halving
from attngraft.results.measured import Measured
from attngraft.results.records import RecordTable
from attngraft.study import StudyConfig, StudyResult, compare, incomplete, load_result, prepare, report_only, runner
from attngraft.study.plan import resolve_runs
from attngraft.study.progress import describe_plan
from attngraft.study.rungs import Rungs
from attngraft.training.recipe import recipe_to_yaml

from ..training.toys import Toy, toy_recipe
from .fakes import FakeTrainer, study, tools

GRAFTS = ["cb_s", "cb", "horizontal", "vertical", "cb_s@blocks.0", "cb_s@blocks.1"]
GAINS = {"cb_s": 0.05, "cb": 0.1, "horizontal": 0.15, "vertical": 0.2, "cb_s@blocks.0": 0.25, "cb_s@blocks.1": -0.2}


def halved(out: Path, **changes: object) -> StudyConfig:
    return study(out, **{"grafts": GRAFTS, "epochs": 9, "halving": "3,1", **changes})


def epochs(config: StudyConfig) -> dict[str, set[int]]:
    """How far the runs of each variant have come."""
    found: dict[str, set[int]] = {}
    for run in resolve_runs(config).runs:
        found.setdefault(run.variant.name, set()).add(run.epochs_done)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyConfig, StudyResult]:
    """A study that was halved, for tests that only look at it."""
    config = halved(tmp_path_factory.mktemp("halved"))
    return config, compare(config, tools=tools(FakeTrainer(GAINS)))


def copied(config: StudyConfig, out: Path) -> StudyConfig:
    """The same study, for tests that change it."""
    shutil.copytree(config.out, out, dirs_exist_ok=True)
    return dataclasses.replace(config, out=out)


def names_compared(result: StudyResult) -> set[str]:
    return {variant.name for variant in result.variants if variant.difference is not None}


def test_the_best_go_on_and_the_baseline_always(whole: tuple[StudyConfig, StudyResult]) -> None:
    config, result = whole
    assert not incomplete(result)
    assert load_result(config.out) == result
    reached = epochs(config)
    assert reached["baseline"] == {9}
    assert all(len(set(each)) == 1 for each in reached.values())
    assert reached["cb_s@blocks.1"] == {1}
    assert reached["cb_s@blocks.0"] == {9}
    # in the order of the list: the best of the first three, then of six the best two
    assert sorted(max(each) for each in reached.values()) == [1, 1, 1, 3, 3, 9, 9]
    assert names_compared(result) == {"cb_s@blocks.0"}
    assert result.halving is not None
    assert result.halving.stopped == {"cb_s": 1, "cb": 1, "cb_s@blocks.1": 1, "horizontal": 3, "vertical": 3}
    assert [each.epoch for each in result.halving.standings].count(1) == 6
    assert [each.epoch for each in result.halving.standings].count(3) == 3


def test_what_is_stopped_is_not_tested_and_still_corrected_for(tmp_path: Path) -> None:
    result = compare(halved(tmp_path, seeds=3, grafts=GRAFTS[3:]), tools=tools(FakeTrainer(GAINS)))
    best = next(variant.difference for variant in result.variants if variant.name == "cb_s@blocks.0")
    assert best is not None
    assert best.p_value is not None
    assert best.p_holm == pytest.approx(min(1.0, 3 * best.p_value))
    for variant in result.variants:
        if not variant.is_baseline and variant.name != "cb_s@blocks.0":
            assert (variant.runs, variant.difference, variant.last) == ([], None, {})


def test_what_a_reader_is_told(whole: tuple[StudyConfig, StudyResult], tmp_path: Path) -> None:
    config, result = whole
    text = " ".join(result.notes)
    assert "after epoch 1 and 3 of 9, only about one in 3 variants was continued" in text
    assert "Stopped after epoch 1:" in text
    assert "cb_s@blocks.1 (" in text
    assert "rank 6 of 6" in text
    assert "confirm a difference with other seeds" in text
    assert "no finished run" not in text
    assert result.halving is not None
    assert rank_at(result.halving, "cb_s@blocks.0", 1) == (1, 6)
    assert report_only(copied(config, tmp_path), tools=tools(FakeTrainer())).notes[:3] == result.notes[:3]


def test_decisions_follow_from_the_file(whole: tuple[StudyConfig, StudyResult]) -> None:
    config, _ = whole
    kept = read_halving(config.out)
    assert kept is not None
    assert Rungs.replay(kept, [variant.name for variant in config.variants[1:]]).result() == kept
    for each in kept.standings:
        rows = [
            json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[each.epoch - 1])["val/top1"]
            for run in resolve_runs(config).runs
            if run.variant.name == each.variant
        ]
        assert each.score == pytest.approx(sum(rows) / len(rows))


def test_an_interrupted_one_goes_on_and_decides_the_same(
    whole: tuple[StudyConfig, StudyResult], tmp_path: Path
) -> None:
    config, expected = halved(tmp_path), whole[1].halving
    for spec in ("horizontal", "cb_s@blocks.0"):
        with pytest.raises(KeyboardInterrupt):
            compare(config, tools=tools(FakeTrainer(GAINS, stops=(spec, 1))))
    parts = compare(config, tools=tools(FakeTrainer(GAINS)))
    assert parts.halving == expected
    again = FakeTrainer(GAINS)
    assert compare(config, tools=tools(again)).halving == expected
    assert again.calls == []


def test_without_the_file_it_is_decided_by_the_runs(whole: tuple[StudyConfig, StudyResult], tmp_path: Path) -> None:
    config, first = copied(whole[0], tmp_path), whole[1]
    (tmp_path / HALVING_FILE).unlink()
    again = compare(config, tools=tools(FakeTrainer(GAINS)))
    assert {name for name, epoch in epochs(config).items() if epoch == {9}} == {"baseline", "cb_s@blocks.0"}
    assert names_compared(again) == names_compared(first)
    (tmp_path / HALVING_FILE).write_text("{")
    with pytest.raises(ConfigError, match="delete the file to repeat the decisions"):
        compare(config, tools=tools(FakeTrainer(GAINS)))


def test_halving_off_continues_those_that_were_stopped(whole: tuple[StudyConfig, StudyResult], tmp_path: Path) -> None:
    config = dataclasses.replace(copied(whole[0], tmp_path), halving=None)
    result = compare(config, tools=tools(FakeTrainer(GAINS)))
    assert names_compared(result) == set(GRAFTS)
    assert result.halving is not None
    assert result.halving.stopped == {}
    assert any("was used" in note for note in result.notes)


def test_a_variant_with_a_failed_run_is_not_waited_for(tmp_path: Path) -> None:
    config = halved(tmp_path, grafts=GRAFTS[3:])
    result = compare(config, tools=tools(FakeTrainer(GAINS, fails={("cb_s@blocks.0", 1)})))
    assert incomplete(result)
    assert epochs(config)["vertical"] == {9}
    assert result.halving is not None
    assert "cb_s@blocks.0" not in result.halving.stopped
    healed = compare(config, tools=tools(FakeTrainer(GAINS)))
    assert names_compared(healed) == {"vertical", "cb_s@blocks.0"}
    assert not incomplete(healed)


def test_the_plan_says_it_and_estimates_less(tmp_path: Path) -> None:
    plain = prepare(halved(tmp_path, halving=None), tools=tools(FakeTrainer()))
    prepared = prepare(halved(tmp_path), tools=tools(FakeTrainer()))
    assert prepared.seconds is not None
    assert plain.seconds is not None
    assert prepared.seconds < 0.6 * plain.seconds
    assert "one in 3" in describe_plan(prepared.runs, seconds=None, extra="about one in 3")
    with pytest.raises(UsageError, match="too few for a rung"):
        prepare(halved(tmp_path, epochs=3, halving=4), tools=tools(FakeTrainer()))


def test_a_time_budget_takes_what_halving_spares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """90 s; 7 variants with 2 seeds start for 1 s each and take 1 s an epoch: 5 epochs each, or more where most stop."""
    monkeypatch.setattr(runner, "COST_SECONDS", 120.0)
    plain = prepare(halved(tmp_path, halving=None, epochs=None, time_budget="100s"), tools=tools(FakeTrainer()))
    assert plain.fitted_epochs == 5
    config = halved(tmp_path, epochs=None, time_budget="100s")
    prepared = prepare(config, tools=tools(FakeTrainer()))
    assert prepared.fitted_epochs is not None
    assert prepared.fitted_epochs > 8
    assert prepared.seconds is not None
    assert 70 < prepared.seconds <= 95


def test_variants_in_other_units_are_not_ranked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As perplexity per token with another tokenizer: refused before anything is trained or written."""
    measure = Toy.measure

    def with_units(self: Toy, table: RecordTable, facts: Mapping[str, Any]) -> Measured:
        assert len(table.names) == len(table.array("label"))
        units = {"top1": f"per {self.config.smoothing}", "nll": str(self.config.noise)}
        return dataclasses.replace(measure(self, table, facts), comparable=units)

    monkeypatch.setattr(Toy, "measure", with_units)
    (tmp_path / "recipe.yaml").write_text(recipe_to_yaml(toy_recipe()))

    def config(field: str, halving: str = "3,1") -> StudyConfig:
        plain = {"host": None, "data": None, "recipe": str(tmp_path / "recipe.yaml"), "halving": halving, "epochs": 9}
        return study(tmp_path / "out", grafts=["cb", {"name": "b", "graft": "cb_s", "set": {field: 0.1}}], **plain)

    message = (
        r"ranks variants by top1, and the variant b measures it in other units .* \(per 0.1, not per 0.0\); use --h"
    )
    with pytest.raises(UsageError, match=message):
        compare(config("task.smoothing"))
    assert not (tmp_path / "out").exists()
    prepare(config("task.smoothing", halving="off"))
    prepare(config("task.noise"))
    prepare(config("train.drop_path"))
