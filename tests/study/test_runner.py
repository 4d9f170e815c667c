"""The course of a study with a trainer that trains nothing: order, skipping, failures, interruptions, reports."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from attngraft.downloads import Permitted, downloads_of
from attngraft.errors import ConfigError, FolderError, GraftSpecError, TrainingError, UsageError
from attngraft.results.study import Cost, StudyResult
from attngraft.study import compare, incomplete, load_result, prepare, read_study_file, report_only, study_from_dict
from attngraft.study.config import StudyConfig
from attngraft.training.lock import locked
from attngraft.training.recipe import Recipe
from attngraft.training.run_folder import RunRecord

from .fakes import FakeTrainer, study, tools

SPECS = ["none", "cb_s", "horizontal"]


def test_runs_seed_by_seed_with_the_baseline_first(tmp_path: Path) -> None:
    trainer, reports = FakeTrainer({"cb_s": 0.2}), []
    result = compare(study(tmp_path), tools=tools(trainer, reports=reports))
    assert trainer.calls == [(spec, seed) for seed in (0, 1) for spec in SPECS]
    assert reports == [result]
    assert load_result(tmp_path) == result
    assert (tmp_path / "results.csv").read_text().count("\n") == 4
    assert not incomplete(result)
    assert result.variants[1].cost is not None


def test_finished_runs_are_skipped_and_a_study_can_grow(tmp_path: Path) -> None:
    compare(study(tmp_path), tools=tools(FakeTrainer()))
    again = FakeTrainer()
    compare(study(tmp_path), tools=tools(again))
    assert again.calls == []
    more = FakeTrainer()
    result = compare(study(tmp_path, grafts=["cb_s", "horizontal", "cb"], seeds=3), tools=tools(more))
    assert more.calls == [("cb", 0), ("cb", 1), *((spec, 2) for spec in [*SPECS, "cb"])]
    assert [len(variant.runs) for variant in result.variants] == [3, 3, 3, 3]


def test_another_recipe_in_the_folder_is_refused_with_its_fields(tmp_path: Path) -> None:
    compare(study(tmp_path), tools=tools(FakeTrainer()))
    trainer = FakeTrainer()
    with pytest.raises(TrainingError, match=r"(?s)schedule\.epochs \(3 -> 4\).*5 more runs.*another --out") as caught:
        compare(study(tmp_path, epochs=4, seeds=2), tools=tools(trainer))
    assert "study.yaml" in str(caught.value)
    assert trainer.calls == []


def test_a_failing_run_does_not_lose_the_others(tmp_path: Path) -> None:
    trainer = FakeTrainer(fails={("cb_s", 1)})
    result = compare(study(tmp_path), tools=tools(trainer))
    assert len(trainer.calls) == 6
    assert incomplete(result)
    assert [len(variant.runs) for variant in result.variants] == [2, 1, 2]
    assert any("cb_s, seed 1 failed: RuntimeError: out of luck" in note for note in result.notes)
    failure = tmp_path / "runs" / "cb_s" / "seed1" / "failure.txt"
    assert "Traceback" in failure.read_text()
    healed = compare(study(tmp_path), tools=tools(FakeTrainer()))
    assert not incomplete(healed)
    assert not failure.exists()


def test_a_failing_baseline_leaves_a_report_without_differences(tmp_path: Path) -> None:
    result = compare(study(tmp_path), tools=tools(FakeTrainer(fails={("none", 0), ("none", 1)})))
    assert [variant.difference for variant in result.variants] == [None, None, None]
    assert [variant.epochs_to_baseline for variant in result.variants] == [None, None, None]
    assert len(result.variants[1].runs) == 2


def test_when_every_run_fails_that_is_said(tmp_path: Path) -> None:
    everything = {(spec, seed) for spec in SPECS for seed in (0, 1)}
    with pytest.raises(
        TrainingError, match=r"every run of the study .* baseline, seed 0 failed: RuntimeError: out of luck"
    ):
        compare(study(tmp_path), tools=tools(FakeTrainer(fails=everything)))


def test_an_interruption_keeps_everything(tmp_path: Path) -> None:
    trainer = FakeTrainer(stops=("cb_s", 1))
    with pytest.raises(KeyboardInterrupt, match="rerun the same command to resume"):
        compare(study(tmp_path), tools=tools(trainer))
    assert trainer.calls[-1] == ("cb_s", 1)
    assert {v.name: len(v.runs) for v in load_result(tmp_path).variants} == {"baseline": 1, "cb_s": 1, "horizontal": 1}
    partial = report_only(study(tmp_path), tools=tools(trainer))
    assert [len(variant.runs) for variant in partial.variants] == [2, 1, 1]
    rest = FakeTrainer()
    assert not incomplete(compare(study(tmp_path), tools=tools(rest)))
    assert rest.calls == [("cb_s", 1), ("horizontal", 1)]


def test_report_only_needs_no_recipe_and_no_host(tmp_path: Path) -> None:
    result = compare(study(tmp_path), tools=tools(FakeTrainer({"cb_s": 0.1})))
    moved = tmp_path / "moved"
    shutil.copytree(tmp_path, moved, ignore=shutil.ignore_patterns("moved"))
    config = study_from_dict({**read_study_file(moved / "study.yaml"), "out": str(moved), "recipe": "gone.yaml"})
    again = report_only(config, tools=tools(FakeTrainer()))
    assert dataclasses.replace(again, created="", command="") == dataclasses.replace(result, created="", command="")
    with pytest.raises(TrainingError, match="nothing to report"):
        report_only(study(tmp_path / "empty"), tools=tools(FakeTrainer()))


def test_a_run_is_no_folder_for_a_study(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("")
    with pytest.raises(FolderError, match="is the folder of a run"):
        compare(study(tmp_path), tools=tools(FakeTrainer()))


def test_mistakes_are_found_before_anything_trains(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    with pytest.raises(GraftSpecError, match="blocks.7"):
        compare(study(tmp_path, grafts=["cb_s@blocks.7"]), tools=tools(trainer))
    with pytest.raises(UsageError, match="cb does not fit the host: ResNet"):
        compare(study(tmp_path, host="resnet10t", grafts=["cb"]), tools=tools(trainer))
    assert trainer.calls == []
    assert not (tmp_path / "runs").exists()


def test_a_time_budget_decides_the_epochs_and_is_kept(tmp_path: Path) -> None:
    config = study(tmp_path, epochs=None, time_budget="100s")
    prepared = prepare(config, tools=tools(FakeTrainer(), epoch_seconds=2.0))
    assert prepared.fitted_epochs == 7  # 90 s for 6 runs of 1 s + 2 s per epoch
    assert prepared.seconds == 6 * (1 + 7 * 2)
    compare(config, tools=tools(FakeTrainer(), epoch_seconds=2.0))
    other_day = FakeTrainer()
    result = compare(config, tools=tools(other_day, epoch_seconds=5.0))
    assert (other_day.calls, result.epochs) == ([], 7)
    assert (
        prepare(study(tmp_path / "b", epochs=4, time_budget="1h"), tools=tools(FakeTrainer())).runs[0].epochs_left == 4
    )


def test_a_time_budget_that_is_too_small(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is too short for one epoch: 6 runs of one epoch take about 18 s"):
        compare(study(tmp_path, time_budget="15s"), tools=tools(FakeTrainer(), epoch_seconds=2.0))


def test_only_one_process_works_on_a_study(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(TrainingError, match="another run is using this folder"):
        compare(study(tmp_path), tools=tools(FakeTrainer()))


def test_costs_that_cannot_be_measured_are_a_note(tmp_path: Path) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no memory")

    reports: list[StudyResult] = []
    kit = dataclasses.replace(tools(FakeTrainer(), reports=reports), measure_costs=broken)
    result = compare(study(tmp_path), tools=kit)
    assert result.variants[0].cost is None
    assert "Measuring the costs failed: no memory" in result.notes
    again = compare(study(tmp_path), tools=tools(FakeTrainer()))
    assert again.variants[0].cost is not None


def test_costs_are_of_the_batches_that_fitted(tmp_path: Path) -> None:
    class Choosing(FakeTrainer):
        """One run finds that less fits."""

        def __call__(self, recipe: Recipe, folder: Path, **options: Any) -> RunRecord:
            if (recipe.graft, recipe.seed) == ("cb_s", 1):
                recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, accumulate=4))
            return super().__call__(recipe, folder, **options)

    measured: list[StudyConfig] = []

    def costs(config: StudyConfig, benchmark: Any, *, seconds: float, limit: float) -> dict[str, Cost]:
        measured.append(config)
        return tools(FakeTrainer()).measure_costs(config, benchmark, seconds=seconds, limit=limit)

    kit = dataclasses.replace(tools(Choosing()), measure_costs=costs)
    config = study(tmp_path, set=["train.auto_batch=true"])
    for _ in range(2):  # and once
        result = compare(config, tools=kit)
    assert [each.recipe_of(each.baseline, 0).train.accumulate for each in measured] == [4]
    assert any("train.accumulate 1, 4" in note for note in result.notes)
    assert "accumulate" not in (tmp_path / "study.yaml").read_text()


def test_what_batch_norms_see_of_an_update_is_noted(tmp_path: Path) -> None:
    class Normed(FakeTrainer):
        def __call__(self, recipe: Recipe, folder: Path, **options: Any) -> RunRecord:
            record = super().__call__(recipe, folder, **options)
            seen = record.environment | {"batch_norm_examples": 32}
            (folder / "environment.json").write_text(json.dumps(seen))
            return record

    note = "Batch norm computes mean and variance over 32 examples at a time, not over all examples of an update"
    assert any(each.startswith(note) for each in compare(study(tmp_path / "a"), tools=tools(Normed())).notes)
    assert not any("atch norm" in each for each in compare(study(tmp_path / "b"), tools=tools(FakeTrainer())).notes)


def test_costs_are_measured_once(tmp_path: Path) -> None:
    first = compare(study(tmp_path), tools=tools(FakeTrainer()))

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError

    again = compare(study(tmp_path), tools=dataclasses.replace(tools(FakeTrainer()), measure_costs=never))
    assert [variant.cost for variant in again.variants] == [variant.cost for variant in first.variants]


@pytest.mark.parametrize(
    "lack",
    [torch.OutOfMemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")],
)
def test_variants_that_do_not_fit_into_memory_together_are_still_trained(tmp_path: Path, lack: Exception) -> None:
    def too_much(*args: object) -> None:
        raise lack

    kit = dataclasses.replace(tools(FakeTrainer()), measure_throughput=too_much)
    assert not incomplete(compare(study(tmp_path / "a"), tools=kit))
    with pytest.raises(UsageError, match="--epochs instead"):
        compare(study(tmp_path / "b", time_budget="10m"), tools=kit)


def test_an_unknown_metric_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attngraft.study.runner.check_variants", lambda _: pytest.fail("the check came too late"))
    with pytest.raises(ConfigError, match=r"task\.metrics\.primary: 'top2' is not a choice .*allowed: top1"):
        prepare(study(tmp_path, set=["task.metrics.primary=top2"]))
    own = type("Own", (), {"name": "own", "metrics": {"miou": None}, "primary": "miou"})()
    own.primary = "mio"  # by its section
    monkeypatch.setattr("attngraft.study.checks.build_task", lambda _: own)
    with pytest.raises(ConfigError, match=r"task own: has no metric 'mio' \(did you mean miou\?\); use one of miou"):
        prepare(study(tmp_path))
    monkeypatch.undo()
    with pytest.raises(ConfigError):
        compare(study(tmp_path / "new", set=["task.metrics.primary=top2"]))
    assert not (tmp_path / "new").exists()


def test_runs_inherit_the_permission_to_download(tmp_path: Path) -> None:
    """They may be trained in other processes."""
    trainer, given = FakeTrainer(), []

    def train(*args: Any, downloads: Permitted = None, **known: Any) -> RunRecord:
        given.append(downloads)
        return trainer(*args, **known)

    used = dataclasses.replace(tools(trainer), train=train)
    compare(study(tmp_path / "own"), tools=used)
    with downloads_of(["hf:a/b"]):
        compare(study(tmp_path / "received"), tools=used)
    assert given == [None] * 6 + [("hf:a/b",)] * 6
