"""Of which weights and of which examples a run's numbers are: `train.judge`, a test split, and two depths of inference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from attngraft.errors import DataError
from attngraft.results.records import Records
from attngraft.results.storage import load_result
from attngraft.study import compare
from attngraft.study.config import study_from_dict
from attngraft.tasks.task import Batch
from attngraft.training.evaluate import evaluate_run
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import recipe_from_dict, recipe_to_yaml
from attngraft.training.stopping import Interrupted
from tests.tasks.images.datasets import make_folder
from tests.training.toys import Toy, assert_same_outcome, toy_recipe, with_new_checksums

#: the first epoch is the best one: afterwards the learning rate ruins the weights
RUINED: dict[str, Any] = {"optimizer": {"lr": 0.5}, "schedule": {"epochs": 4, "warmup_epochs": 0}}


def predicted(folder: Path) -> tuple[list[str], float]:
    with np.load(folder / "predictions.npz") as file:
        return file["name"].tolist(), 100 * float(file["score"].mean())


def test_the_best_weights_are_judged_where_asked_for(tmp_path: Path) -> None:
    recipe = toy_recipe(**RUINED, train={"judge": "best"})
    record = train(recipe, tmp_path, progress=Silent())
    best = evaluate_run(tmp_path, weights="best").metrics
    assert record.judged is not None
    assert (record.judged.weights, record.judged.split) == ("best", "val")
    values = [row["val/top1"] for row in record.epochs]
    assert record.judged.epoch == values.index(max(values)) + 1
    assert record.judged.compared() == pytest.approx(dict(best))
    assert predicted(tmp_path)[1] == pytest.approx(max(values))


def image_recipe(data: Path) -> dict[str, Any]:
    size = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 2}
    return {
        "host": {"name": "vit_tiny_patch16_224", "args": size},
        "task": {"name": "classification", "data": {"source": str(data)}},
        "schedule": {"epochs": 1, "warmup_epochs": 0},
        "train": {"batch_size": 4, "judge": "best"},
    }


@pytest.mark.slow
def test_a_study_is_judged_on_the_test_split_of_its_images(tmp_path: Path) -> None:
    parts = {"train": {"a": 4, "b": 4}, "val": {"a": 2, "b": 2}, "test": {"a": 3, "b": 3}}
    recipe = recipe_from_dict(image_recipe(make_folder(tmp_path / "data", parts)))
    (tmp_path / "r.yaml").write_text(recipe_to_yaml(recipe))
    plain = {"recipe": str(tmp_path / "r.yaml"), "grafts": ["cb_s"], "out": str(tmp_path / "study")}
    result = compare(study_from_dict({**plain, "seeds": [0, 1]}), costs=False)
    assert (result.judged_weights, result.judged_split) == ("best", "test")
    assert result.data["sizes"] == {"train": 8, "val": 4, "test": 6}
    assert (
        "Runs are evaluated on the test split, which was not used for any choice; curves are of the validation split."
        in result.notes
    )
    page = (tmp_path / "study" / "report.html").read_text()
    assert "best weights on the validation split, evaluated on the test split" in page
    run = tmp_path / "study" / "runs" / "cb_s" / "seed1"
    judged = evaluate_run(run, weights="best")
    assert (judged.split, len(judged.predictions.names)) == ("test", 6)
    assert judged.metrics["top1"] == pytest.approx(result.variants[1].runs[1].last["top1"])
    assert evaluate_run(run, split="val").split == "val"
    assert len(evaluate_run(run, split="val").predictions.names) == 4
    assert evaluate_run(run, data=str(tmp_path / "data")).split == "test"

    shutil.move(tmp_path / "data" / "test", tmp_path / "test")
    with pytest.raises(DataError, match="is judged on the test split, but the data no longer have one"):
        evaluate_run(run)
    without = {**plain, "out": str(tmp_path / "without"), "seeds": [0]}
    assert compare(study_from_dict(without), costs=False).judged_split == "val"
    page = (tmp_path / "without" / "report.html").read_text()
    assert page.count("chosen and evaluated on the same validation examples") >= 2

    # what an earlier version began is judged on validation, also where further seeds are added
    shutil.move(tmp_path / "test", tmp_path / "data" / "test")
    for path in (tmp_path / "without").glob("runs/*/seed0/data.json"):
        found = json.loads(path.read_text())
        del found["judged_split"]
        path.write_text(json.dumps(found))
        with_new_checksums(path.parent)
    assert evaluate_run(tmp_path / "without/runs/cb_s/seed0").split == "val"
    more = compare(study_from_dict({**without, "seeds": [0, 1]}), costs=False)
    assert more.judged_split == "val"
    assert not any("not all judged" in note for note in more.notes)
    assert evaluate_run(tmp_path / "without/runs/cb_s/seed1").split == "val"


def test_an_interrupted_run_of_an_earlier_version_is_judged_on_validation(tmp_path: Path) -> None:
    recipe = toy_recipe(task={"test": 7})
    train(recipe, tmp_path, progress=Silent(), stop_after_epoch=1)
    path = tmp_path / "data.json"
    found = json.loads(path.read_text())
    assert found.pop("judged_split") == "test"
    path.write_text(json.dumps(found))
    assert train(recipe, tmp_path, progress=Silent()).judged is None
    assert evaluate_run(tmp_path).split == "val"


def test_a_test_split_is_judged_once_at_the_end(tmp_path: Path) -> None:
    record = train(toy_recipe(task={"test": 7}), tmp_path / "one", progress=Silent())
    assert record.judged is not None
    assert (record.judged.weights, record.judged.epoch, record.judged.split) == ("last", 2, "test")
    assert not any(name.startswith("test/") for row in record.epochs for name in row)
    names, score = predicted(tmp_path / "one")
    assert names == [f"toy/{2000 + index}" for index in range(7)]
    assert record.judged.metrics["test/top1"] == pytest.approx(score)
    assert json.loads((tmp_path / "one" / "finished.json").read_text())["judged"]["split"] == "test"
    assert evaluate_run(tmp_path / "one").metrics["top1"] == pytest.approx(score)

    with pytest.MonkeyPatch.context() as monkeypatch:  # a stop in the judging itself
        monkeypatch.setattr("attngraft.training.loop.Trainer.judge", lambda self: self._stop_before_judging())
        with pytest.raises(Interrupted, match="rerun the same command"):
            train(toy_recipe(task={"test": 7}), tmp_path / "two", progress=Silent())
    assert not (tmp_path / "two" / "finished.json").exists()
    train(toy_recipe(task={"test": 7}), tmp_path / "two", progress=Silent())
    assert_same_outcome(tmp_path / "one", tmp_path / "two")


def test_training_infers_lightly_and_the_end_fully(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, calls = Toy.infer, []

    def infer(self: Toy, model: nn.Module, batch: Batch, *, full: bool = True) -> Records:
        calls.append(full)
        return whole(self, model, batch, full=full)

    monkeypatch.setattr(Toy, "infer", infer)
    assert train(toy_recipe(), tmp_path / "one", progress=Silent()).judged is None
    assert calls == [True, True]
    calls.clear()
    monkeypatch.setattr(Toy, "has_light_inference", True)
    record = train(toy_recipe(), tmp_path / "two", progress=Silent())
    assert calls == [False, False, True]
    assert record.judged is not None
    assert record.judged.compared()["top1"] == record.epochs[-1]["val/top1"]


@pytest.mark.parametrize(
    ("test", "says"), [(0, "chosen and evaluated on the same validation"), (9, "on the test split")]
)
def test_a_study_says_what_it_compares(tmp_path: Path, test: int, says: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe_to_yaml(toy_recipe(**RUINED, task={"test": test}, train={"judge": "best"})))
    study = {"grafts": ["cb_s"], "recipe": str(recipe), "seeds": 2, "out": str(tmp_path / "out")}
    result = compare(study_from_dict(study), costs=False)
    assert (result.judged_weights, result.judged_split) == ("best", "test" if test else "val")
    for variant in result.variants:
        for run in variant.runs:
            names, score = predicted(tmp_path / "out" / run.folder)
            assert run.last["top1"] == pytest.approx(score)
            assert len(names) == (test or 10)
    assert any(says in note for note in result.notes)
    page = (tmp_path / "out" / "report.html").read_text()
    assert says in page
    assert load_result(tmp_path / "out") == result
