from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from accelerate import Accelerator

from attngraft.errors import DataError, TrainingError, UsageError
from attngraft.results.records import open_records
from attngraft.training.build import build_model, build_task, model_data_config
from attngraft.training.evaluate import SplitEvaluator, evaluate_run
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import recipe_from_dict, recipe_to_dict
from attngraft.training.setup import create_accelerator
from attngraft.training.stopping import StopSignal
from tests.contract.task_contract import tiny_vit
from tests.tasks.points.runs import train_shapes
from tests.training.toys import toy_recipe, with_new_checksums


def test_outputs_are_kept_only_where_asked_for(tmp_path: Path) -> None:
    recipe = recipe_from_dict(
        {
            "host": tiny_vit(),
            "task": {"name": "toy_bars", "size": 16},
            "schedule": {"epochs": 1, "warmup_epochs": 0},
            "train": {"batch_size": 8},
        }
    )
    for name, outputs in (("with", True), ("without", False)):
        train(replace(recipe, train=replace(recipe.train, outputs=outputs)), tmp_path / name, progress=Silent())
        with open_records(tmp_path / name / "predictions.npz") as table:
            assert set(table) == {"correct", "predicted", "actual", *(["columns"] if outputs else [])}
    old = {name: value for name, value in recipe_to_dict(recipe)["train"].items() if name != "outputs"}
    assert not recipe_from_dict({**recipe_to_dict(recipe), "train": old}).train.outputs, "of an earlier version"


class AfterBatches(StopSignal):
    """A wish to stop that comes after so many batches."""

    def __init__(self, batches: int) -> None:
        super().__init__(Accelerator(cpu=True))
        self.left = batches

    def agreed(self) -> bool:
        self.left -= 1
        return self.left == 0


def test_an_evaluation_can_be_stopped_between_batches() -> None:
    recipe = toy_recipe(train={"eval_batch_size": 4})
    task = build_task(recipe)
    data = task.load(model_data_config=model_data_config(recipe))
    evaluate = SplitEvaluator(task, data.val, recipe, create_accelerator(recipe), facts=data.facts)
    model = build_model(recipe, data.model_args)
    stop = AfterBatches(2)
    assert evaluate(model, stop=stop) is None
    assert stop.left == 0
    whole = evaluate(model)
    assert whole is not None
    assert len(whole.predictions.names) == 10


def test_batch_size_and_workers_do_not_matter() -> None:
    results = []
    for size, workers in ((1, 0), (4, 2), (64, 0)):
        recipe = toy_recipe(train={"eval_batch_size": size, "workers": workers})
        task = build_task(recipe)
        data = task.load(model_data_config=model_data_config(recipe))
        evaluation = SplitEvaluator(task, data.val, recipe, create_accelerator(recipe), facts=data.facts)(
            build_model(recipe, data.model_args)
        )
        assert evaluation is not None
        results.append(evaluation.metrics["nll"])
    assert results[1:] == pytest.approx(results[:1] * 2, abs=1e-6)


def test_runs_that_cannot_be_evaluated(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="not a run folder"):
        evaluate_run(tmp_path)
    train(toy_recipe(), tmp_path, progress=Silent())
    with pytest.raises(TrainingError, match="no moving average"):
        evaluate_run(tmp_path, weights="ema")
    with pytest.raises(TrainingError, match=r"best-ema\.safetensors: these weights cannot be read"):
        evaluate_run(tmp_path, weights="best-ema")
    data = tmp_path / "data.json"
    data.write_text(data.read_text().replace('"num_classes": 3', '"num_classes": 4'))
    with_new_checksums(tmp_path)
    with pytest.raises(DataError, match="built for .*4.* require .*3"):
        evaluate_run(tmp_path)


def test_examples_that_moved_into_the_split_are_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    args = {"img_size": 8, "patch_size": 4, "depth": 1, "embed_dim": 24, "num_heads": 3, "in_chans": 1}
    recipe = recipe_from_dict(
        {
            "host": {"name": "vit_tiny_patch16_224", "args": args},
            "task": {"name": "classification", "data": {"source": "digits"}},
            "schedule": {"epochs": 1, "warmup_epochs": 0},
            "train": {"batch_size": 256},
        }
    )
    train(recipe, tmp_path, progress=Silent())
    evaluate_run(tmp_path)
    assert "no longer has" not in caplog.text
    lines = (tmp_path / "split.csv").read_text()
    (tmp_path / "split.csv").write_text(lines.replace(",val\n", ",train\n", 1))
    with_new_checksums(tmp_path)
    evaluate_run(tmp_path)
    assert "its val split no longer has the examples" in caplog.text


def test_a_split_that_the_data_of_a_task_do_not_name(tmp_path: Path) -> None:
    run = train_shapes(tmp_path / "run", "pointnet")
    assert evaluate_run(run, split="val").split == "val"
    with pytest.raises(
        UsageError, match="--split train: data of the task points have no other splits; use val or test"
    ):
        evaluate_run(run, split="train")


def test_img_size_and_channels_decide_the_input() -> None:
    recipe = toy_recipe(host={"name": "vit_tiny_patch16_224", "args": {"img_size": [32, 48], "in_chans": 1}})
    config = model_data_config(recipe)
    assert config["input_size"] == (1, 32, 48)
    overlay = {"pretrained_cfg_overlay": {"crop_pct": 0.875}}
    assert model_data_config(toy_recipe(host={"name": "deit_tiny_patch16_224", "args": overlay}))["crop_pct"] == 0.875
