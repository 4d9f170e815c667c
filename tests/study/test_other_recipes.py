"""Variants with a recipe of their own: how they are written, what is refused, and what runs and results make of them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from attngraft.errors import ConfigError, TrainingError, UsageError
from attngraft.report.page import report_html
from attngraft.results.storage import csv_text
from attngraft.results.wording import study_model
from attngraft.study import compare, load_result, prepare, read_study_file, report_only, runner, study_from_dict
from attngraft.study.checks import check_variants
from attngraft.study.plan import resolve_runs
from attngraft.study.throughput import measure_throughput
from attngraft.study.variants import read_variants
from attngraft.training.profiler import BenchmarkBatch
from attngraft.yaml_config import dump_yaml

from ..report.studies import table_text
from .fakes import FakeTrainer, study, tools

WARM: dict[str, Any] = {"schedule.warmup_epochs": 1, "train.drop_path": 0.2}
GRAFTS: list[Any] = ["cb_s", {"graft": "cb_s", "set": WARM}, {"name": "recipe alone", "set": WARM}]
NAME = "cb_s with schedule.warmup_epochs=1, train.drop_path=0.2"


# --- how they are written -----------------------------------------------------------------------------------------


def test_forms_of_set() -> None:
    (_, dotted), (_, nested), (_, texts) = (
        read_variants([{"graft": "cb_s", "set": given}])
        for given in (
            WARM,
            {"train": {"drop_path": 0.2}, "schedule": {"warmup_epochs": 1}},
            ["train.drop_path=2e-1", "schedule.warmup_epochs=1"],
        )
    )
    assert dotted == nested == texts
    assert (dotted.name, dotted.key, dotted.is_baseline) == (NAME, NAME, False)
    assert [v.name for v in read_variants([*GRAFTS, {"set": {"optimizer.lr": 0.1}}])] == [
        "baseline",
        "cb_s",
        NAME,
        "recipe alone",
        "none with optimizer.lr=0.1",
    ]
    assert len({v.slug for v in read_variants([*GRAFTS, {"graft": "cb_s", "set": ["optimizer.lr=0.1"]}])}) == 5


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"graft": "cb", "set": {"seed": 3}}, r"study\.grafts\[0\]\.set\.seed: a study trains every variant.*--seeds"),
        ({"graft": "cb", "set": ["task.data.source=x"]}, r"set\.task\.data\.source: .*different data.*--data"),
        ({"graft": "cb", "set": {"task": {"name": "multilabel"}}}, r"set\.task\.name: .*different tasks"),
        ({"graft": "cb", "set": {"task.metrics.primary": "loss"}}, r"set\.task\.metrics\.primary: .*--metric"),
        ({"graft": "cb", "set": ["task={name: classification}"]}, r"set\.task: set its fields one by one; task\.name"),
        ({"graft": "cb", "set": {"host.args.depth": 2}}, r"set\.host\.args\.depth: write the host next to `set:`"),
        ({"graft": "cb", "set": {"graft": "cb"}}, r"set\.graft: write the graft next to `set:`"),
        ({"graft": "cb", "set": {"train.threads": 2}}, r"set\.train\.threads: does not change what is trained"),
        ({"graft": "cb", "set": ["optimizer.lr"]}, r"set\[0\]: write it as schedule\.warmup_epochs=10; found 'opt"),
        ({"graft": "cb", "set": 3}, r"set: expected fields of the recipe"),
        ({"graft": "cb", "spec": "cb"}, "spec and graft are the same"),
    ],
)
def test_what_set_refuses(tmp_path: Path, entry: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        study(tmp_path, grafts=[entry])


def test_halving_needs_equal_epochs(tmp_path: Path) -> None:
    grafts = [{"graft": "cb_s", "set": {"schedule.epochs": 9}}]
    with pytest.raises(UsageError, match=r"grafts\[0\]\.set\.schedule\.epochs: halving .*--halving off"):
        study(tmp_path, grafts=grafts, halving=3)
    study(tmp_path, grafts=grafts, halving="off")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    config = study(tmp_path, grafts=[*GRAFTS, {"graft": "cb", "set": {"optimizer.opt": "a, b", "distill": None}}])
    (tmp_path / "study.yaml").write_text(dump_yaml(config.to_dict()))
    assert study_from_dict(read_study_file(tmp_path / "study.yaml")) == config


# --- recipes ------------------------------------------------------------------------------------------------------


def test_a_set_applies_after_the_common_ones(tmp_path: Path) -> None:
    config = study(tmp_path, grafts=GRAFTS, set=["train.drop_path=0.1", "optimizer.lr=0.5"])
    plain, _, warm, alone = (config.recipe_of(variant, 1) for variant in config.variants)
    assert (plain.train.drop_path, plain.schedule.warmup_epochs, plain.optimizer.lr) == (0.1, None, 0.5)
    assert (warm.train.drop_path, warm.schedule.warmup_epochs, warm.optimizer.lr) == (0.2, 1, 0.5)
    assert (warm.graft, alone.graft) == ("cb_s", None)
    assert (warm.train, warm.schedule) == (alone.train, alone.schedule)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"schedule.warmup_epoch": 1},
            r"study\.grafts\[0\]\.set: schedule\.warmup_epoch: unknown field.*warmup_epochs",
        ),
        ({"schedule.warmup_epochs": 5}, r"grafts\[0\]\.set: schedule\.warmup_epochs: must be less than the 3 epochs"),
        ({"optimizer.lr.x": 5}, r"grafts\[0\]\.set: optimizer\.lr\.x=5: lr is 0\.001, not a section"),
        ({"task.augment.mixupp": 1}, r"grafts\[0\]\.set \(the variant a\): task\.augment\.mixupp: unknown.*mixup"),
        ({"train.compile": False}, "baseline and a have the same model and recipe"),
    ],
)
def test_recipes_that_are_refused(tmp_path: Path, given: Any, message: str) -> None:
    trainer = FakeTrainer()
    with pytest.raises(UsageError, match=message):
        compare(study(tmp_path, grafts=[{"name": "a", "set": given}]), tools=tools(trainer))
    assert trainer.calls == []
    assert not (tmp_path / "study.yaml").exists()


def test_variants_compared_by_the_loss_share_it(tmp_path: Path) -> None:
    grafts = [{"name": "a", "graft": "cb_s", "set": {"task.loss.name": "bce"}}]
    check_variants(resolve_runs(study(tmp_path, grafts=grafts)))
    with pytest.raises(UsageError, match=r"set \(the variant a\): task\.loss\.name: .*the same for all"):
        check_variants(resolve_runs(study(tmp_path, grafts=grafts, set=["task.metrics.primary=loss"])))


def test_grafts_alone_are_trained_where_there_is_a_graft(tmp_path: Path) -> None:
    own = {"set": {"train.parameters": "grafts"}}
    check_variants(resolve_runs(study(tmp_path, grafts=[{"graft": "cb_s", **own}])))
    with pytest.raises(
        ConfigError, match=r"grafts\[0\]\.set: train\.parameters: is grafts, but the recipe has no graft"
    ):
        resolve_runs(study(tmp_path, grafts=[own]))


def test_a_host_that_does_not_take_the_argument_is_refused(tmp_path: Path) -> None:
    host = {"name": "transformers_classifier", "args": {"model_type": "vit", "hidden_size": 48, "image_size": 16}}
    grafts = [{"name": "a", "set": {"train.drop_path": 0.1}}]
    with pytest.raises(UsageError, match=r"grafts\[0\]\.set \(the variant a\): .*drop_path"):
        check_variants(resolve_runs(study(tmp_path, host=host, grafts=grafts)))


# --- the course of a study ----------------------------------------------------------------------------------------


def test_results_state_a_shortened_warmup(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("schedule: {epochs: 30, warmup_epochs: 5}\n")
    result = compare(study(tmp_path / "study", recipe=str(tmp_path / "mine.yaml")), tools=tools(FakeTrainer()))
    assert result.notes[0].startswith("The recipe's warm-up of 5 epochs does not fit into 3 epochs: it takes 0.3")
    assert result.recipe["schedule"]["warmup_epochs"] is None


def test_results_and_reports_state_every_difference(tmp_path: Path) -> None:
    result = compare(study(tmp_path, grafts=GRAFTS), tools=tools(FakeTrainer({"cb_s": 0.1})))
    assert [variant.recipe for variant in result.variants] == [{}, {}, WARM, WARM]
    assert result.recipe["schedule"]["warmup_epochs"] is None
    assert result.title == f"{study_model(result)} on digits: 2 grafts, 1 other recipe"
    assert len({variant.cost.train_time_ratio.point for variant in result.variants}) == 4  # type: ignore[union-attr]
    assert load_result(tmp_path) == result
    changes, notes = NAME.partition("with ")[2], " ".join(result.notes)
    assert f"{NAME} was trained under another recipe than the baseline: {changes}." in notes
    assert "recipe alone is the plain host under that recipe." in notes
    assert table_text(result, width=100).partition("recipe alone")[2].count("train.drop_path=0.2") == 1
    rows = list(csv.DictReader(io.StringIO(csv_text(result))))
    assert [row["recipe"] for row in rows] == ["", "", changes, changes]
    page = report_html(result)
    assert page.count("schedule.warmup_epochs: 1 instead of null") == 2
    assert "the fields of single variants above" in page

    content = json.loads((tmp_path / "results.json").read_text())
    assert ["recipe" in variant for variant in content["variants"]] == [False, False, True, True]


def test_without_the_plain_host_under_that_recipe_a_note_proposes_it(tmp_path: Path) -> None:
    notes = compare(study(tmp_path, grafts=GRAFTS[:2]), tools=tools(FakeTrainer())).notes
    assert any("add the plain host under that recipe, {set: [schedule.warmup_epochs=1, " in note for note in notes)


def test_a_changed_set_is_no_run_of_the_study(tmp_path: Path) -> None:
    def named(warmup: int) -> Any:
        return study(tmp_path, grafts=[{"name": "a", "graft": "cb_s", "set": {"schedule.warmup_epochs": warmup}}])

    trainer = FakeTrainer()
    compare(named(1), tools=tools(trainer))
    with pytest.raises(TrainingError, match=r"a different recipe: schedule\.warmup_epochs \(1\.0 -> 2\.0\)"):
        compare(named(2), tools=tools(trainer))
    with pytest.raises(TrainingError, match=r"recipe differs from .*set: schedule\.warmup_epochs \(1\.0 -> 2\.0\)"):
        report_only(named(2), tools=tools(trainer))
    assert report_only(named(1), tools=tools(trainer)).variants[1].recipe == {"schedule.warmup_epochs": 1.0}
    compare(named(1), tools=tools(trainer))
    assert len(trainer.calls) == 4


def test_variants_with_other_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grafts = ["cb_s", {"name": "longer", "graft": "cb_s", "set": {"schedule.epochs": 6}}]
    prepared = prepare(study(tmp_path, grafts=grafts), tools=tools(FakeTrainer()))
    assert prepared.seconds == 2 * (4 + 4 + 7)
    monkeypatch.setattr(runner, "COST_SECONDS", 120.0)
    fitted = prepare(study(tmp_path, grafts=grafts, epochs=None, time_budget="60s"), tools=tools(FakeTrainer()))
    assert [run.recipe.schedule.epochs for run in fitted.runs[:3]] == [9, 9, 6]
    result = compare(study(tmp_path, grafts=grafts), tools=tools(FakeTrainer()))
    assert (result.epochs, result.variants[2].recipe) == (3, {"schedule.epochs": 6})
    assert [len(variant.runs[0].curve["epoch"]) for variant in result.variants] == [3, 3, 6]
    assert "last epoch" in table_text(result)
    assert [row["epochs"] for row in csv.DictReader(io.StringIO(csv_text(result)))] == ["3", "3", "6"]
    assert "3 to 6 epochs" in report_html(result)


def test_rungs_are_after_the_longest_warm_up(tmp_path: Path) -> None:
    grafts = ["cb", "horizontal", {"graft": "cb_s", "set": {"schedule.warmup_epochs": 2}}]
    result = compare(study(tmp_path, grafts=grafts, epochs=9, halving=3), tools=tools(FakeTrainer()))
    assert result.halving is not None
    assert result.halving.rungs == [3]


def test_steps_are_timed_with_the_batches_of_each_recipe(tmp_path: Path) -> None:
    own = {"train.batch_size": 8, "train.accumulate": 2, "task.augment.mixup": 0.2}
    config = study(tmp_path, grafts=[{"name": "own", "set": own}], set=["train.batch_size=16"])
    prepared = resolve_runs(config)
    benchmark = BenchmarkBatch(prepared.baseline_recipe)
    other = benchmark.for_recipe(prepared.recipe_of(config.variants[1]))
    assert benchmark.for_recipe(prepared.baseline_recipe) is benchmark
    assert (len(benchmark.batch["image"]), len(other.batch["image"])) == (16, 4)
    assert other.steps_per_epoch > benchmark.steps_per_epoch
    assert measure_throughput(prepared, benchmark).throughputs.keys() == {"baseline", "own"}
