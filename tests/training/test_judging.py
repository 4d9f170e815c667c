"""Of which weights and of which examples a run's numbers are: `train.judge`, a test split, and two depths of inference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from attngraft.results.records import Records
from attngraft.results.storage import load_result
from attngraft.study import compare
from attngraft.study.config import study_from_dict
from attngraft.tasks.task import Batch
from attngraft.training.evaluate import evaluate_run
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import recipe_to_yaml
from attngraft.training.stopping import Interrupted
from tests.training.toys import Toy, assert_same_outcome, toy_recipe

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
