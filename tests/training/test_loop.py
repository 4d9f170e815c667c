"""What one run does: the files it leaves, the randomness it uses, the ways in which it fails."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attngraft.errors import AttngraftError, ConfigError, TrainingError
from attngraft.training.checkpoint import load_weights
from attngraft.training.loop import train
from attngraft.training.progress import LogLines, Silent
from attngraft.training.run_folder import read_run
from tests.training.toys import assert_same_outcome, final_state, metric_rows, toy_recipe


class Recorder(Silent):
    """Keeps what the loop tells."""

    def __init__(self) -> None:
        self.start: dict[str, int] = {}
        self.steps: list[dict[str, float]] = []
        self.epochs: list[dict[str, float]] = []
        self.finished: bool | None = None

    def on_start(self, total_steps: int, **rest: int) -> None:
        self.start = {"total_steps": total_steps, **rest}

    def on_step(self, **step: float) -> None:
        self.steps.append(step)

    def on_epoch(self, metrics: Mapping[str, float]) -> None:
        self.epochs.append(dict(metrics))

    def on_end(self, *, finished: bool) -> None:
        self.finished = finished


def test_a_run_leaves_everything_and_says_so(tmp_path: Path) -> None:
    progress = Recorder()
    record = train(toy_recipe(graft="cb_s", train={"ema": 0.9}), tmp_path, progress=progress)
    assert record.finished
    assert [row["epoch"] for row in record.epochs] == [1, 2]
    assert set(record.epochs[0]) == {
        *("epoch", "lr", "seconds", "train/loss", "train/twice", "val/top1", "val/nll", "ema/top1", "ema/nll"),
    }
    for row in record.epochs:
        assert row["train/twice"] == pytest.approx(2 * row["train/loss"])
    with np.load(tmp_path / "predictions.npz") as predictions:
        assert predictions["name"].tolist() == [f"toy/{1000 + i}" for i in range(10)]
        assert 100 * predictions["score"].mean() == pytest.approx(record.epochs[-1]["val/top1"])
        assert bool(predictions["binary"])
        assert predictions["logits"].shape == (10, 3)
    environment = record.environment
    assert torch.__version__.startswith(environment["packages"]["torch"])
    assert environment["threads"] == torch.get_num_threads()
    assert record.facts == {"classes": 3, "input_size": [3, 224, 224]}
    assert record.model_args == {"num_classes": 3}
    assert json.loads((tmp_path / "finished.json").read_text())["metrics"] == record.epochs[-1]
    assert list((tmp_path / "tensorboard").iterdir())
    assert read_run(tmp_path) == record
    assert progress.start == {"total_steps": 6, "done_steps": 0, "epochs": 2, "steps_per_epoch": 3}
    assert [step["step"] for step in progress.steps] == [1, 2, 3, 4, 5, 6]
    assert progress.epochs == record.epochs
    assert progress.finished


def test_best_weights_are_those_of_the_best_epoch(tmp_path: Path) -> None:
    recipe = toy_recipe(schedule={"epochs": 5}, task={"noise": 0.1}, train={"ema": 0.5})
    record = train(recipe, tmp_path, progress=Silent())
    from attngraft.training.build import build_model
    from attngraft.training.evaluate import evaluate_run

    for kind, prefix, weights in (("best", "val", "best"), ("best-ema", "ema", "best-ema")):
        values = [row[f"{prefix}/top1"] for row in record.epochs]
        facts = load_weights(tmp_path / "checkpoints" / f"{kind}.safetensors", build_model(recipe, {"num_classes": 3}))
        assert facts == {"epoch": values.index(max(values)) + 1, "metric": f"{prefix}/top1", "value": max(values)}
        assert evaluate_run(tmp_path, weights=weights).metrics["top1"] == max(values)
    assert evaluate_run(tmp_path).metrics["top1"] == record.epochs[-1]["val/top1"]
    assert evaluate_run(tmp_path, weights="ema").metrics["top1"] == record.epochs[-1]["ema/top1"]


def test_runs_repeat_whatever_was_drawn_before(tmp_path: Path) -> None:
    train(toy_recipe(), tmp_path / "one", progress=Silent())
    torch.manual_seed(99)
    np.random.seed(99)
    torch.rand(3)
    train(toy_recipe(train={"workers": 1}), tmp_path / "two", progress=Silent())
    assert_same_outcome(tmp_path / "one", tmp_path / "two")
    train(toy_recipe(seed=1), tmp_path / "three", progress=Silent())
    assert metric_rows(tmp_path / "one") != metric_rows(tmp_path / "three")


def test_variants_of_a_seed_share_the_hosts_initial_weights() -> None:
    from attngraft.training.build import build_model

    plain = build_model(toy_recipe(), {"num_classes": 3}).state_dict()
    grafted = build_model(toy_recipe(graft="horizontal + cb_s"), {"num_classes": 3}).state_dict()
    assert all(torch.equal(plain[name], grafted[name]) for name in plain)
    again = build_model(toy_recipe(graft="horizontal"), {"num_classes": 3}).state_dict()
    other = build_model(toy_recipe(graft="horizontal", seed=1), {"num_classes": 3}).state_dict()
    drawn = [name for name in again if ".grafts." in name and again[name].ndim > 1 and again[name].any()]
    assert drawn
    assert all(torch.equal(grafted[name], again[name]) for name in drawn)
    assert not any(torch.equal(other[name], again[name]) for name in drawn)


def test_micro_batches_make_the_same_update(tmp_path: Path) -> None:
    quiet = {"host": {"name": "toy_vit_double", "args": {}}, "task": {"double": True}}
    for parts in (1, 4):
        recipe = toy_recipe(**quiet, train={"drop_path": None, "accumulate": parts, "clip_grad": 0.5})
        train(recipe, tmp_path / str(parts), progress=Silent())
    one, four = final_state(tmp_path / "1")["model"], final_state(tmp_path / "4")["model"]
    for name in one:
        torch.testing.assert_close(one[name], four[name], rtol=0, atol=1e-12)


def test_a_loss_that_is_not_finite_stops_before_the_weights_move(tmp_path: Path) -> None:
    recipe = toy_recipe(task={"poison": 7}, train={"save_every": 1})
    with pytest.raises(TrainingError) as caught:
        train(recipe, tmp_path, progress=Silent())
    message = str(caught.value)
    assert "the loss is not finite in epoch 1, step " in message
    assert "loss nan" in message
    assert "gradient norms: " in message
    report = json.loads((tmp_path / "failure.json").read_text())
    assert "toy/7" in report["examples"]
    assert len(report["examples"]) == 16
    assert report["gradient_norms"]["head.weight"] == "nan"
    last = tmp_path / "checkpoints" / "last.pt"
    if report["step"] > 1:
        assert all(tensor.isfinite().all() for tensor in final_state(tmp_path)["model"].values())
    else:
        assert not last.exists()


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    from attngraft.training.checkpoint import save
    from attngraft.training.run_folder import RunFolder
    from attngraft.training.setup import create_accelerator, prepare

    recipe = toy_recipe()
    run = RunFolder(tmp_path)
    run.create()
    job = prepare(recipe, run, create_accelerator(recipe))
    save(run, job.learner)
    good = run.last.read_bytes()
    with torch.no_grad():
        job.core.get_parameter("head.weight")[0, 0] = float("inf")
    with pytest.raises(TrainingError, match=r"not finite .*head\.weight.*was kept"):
        save(run, job.learner)
    assert run.last.read_bytes() == good


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"task": {"trains": 3}}, ConfigError, r"task\.trains.*did you mean train\?"),
        ({"train": {"batch_size": 49}}, ConfigError, "more than an epoch's 48 training examples"),
        ({"host": {"name": "toy_vitt", "args": {}}}, AttngraftError, "toy_vitt.*did you mean toy_vit"),
        ({"host": {"args": {"wings": 2}}}, AttngraftError, "cannot make toy_vit with wings=2"),
        ({"host": {"args": {"num_classes": 4}}}, ConfigError, "host.args.num_classes is 4, but the data needs 3"),
        ({"graft": "cb_x"}, AttngraftError, "did you mean"),
        ({"train": {"amp": "fp16"}}, ConfigError, "train.amp: fp16 needs a GPU"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    if "amp" in str(changes) and torch.accelerator.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(error, match=message):
        train(toy_recipe(**changes), tmp_path / "run", progress=Silent())
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != ".lock"]


@pytest.mark.parametrize(
    "changes", [{"amp": "bf16"}, {"channels_last": True}, {"threads": 1}, {"ema_warmup": True, "ema": 0.9}]
)
def test_ways_of_computing(tmp_path: Path, changes: dict[str, Any]) -> None:
    threads = torch.get_num_threads()
    record = train(toy_recipe(task={"noise": 0.05}, schedule={"epochs": 6}, train=changes), tmp_path, progress=Silent())
    assert record.epochs[-1]["train/loss"] < record.epochs[0]["train/loss"]
    assert torch.get_num_threads() == threads
    assert all(tensor.dtype == torch.float32 for tensor in final_state(tmp_path)["model"].values())


@pytest.mark.slow
def test_a_compiled_run_saves_plain_names(tmp_path: Path) -> None:
    train(toy_recipe(train={"compile": True}), tmp_path / "compiled", progress=Silent())
    train(toy_recipe(), tmp_path / "plain", progress=Silent())
    compiled, plain = (final_state(tmp_path / name)["model"] for name in ("compiled", "plain"))
    assert list(compiled) == list(plain)


def test_plain_log_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="attngraft"):
        train(toy_recipe(), tmp_path, progress=LogLines(every=0))
    lines = [record.getMessage() for record in caplog.records if record.name == "attngraft.training.progress"]
    assert lines[0] == "training for 6 steps: 2 epochs of 3"
    assert sum("  step " in line and "  loss " in line for line in lines) == 6
    assert sum("val/top1" in line for line in lines) == 2
    assert lines[-1] == "finished"


def test_precisions_may_differ_between_runs_of_one_process(tmp_path: Path) -> None:
    train(toy_recipe(train={"amp": "bf16"}), tmp_path / "bf16", progress=Silent())
    train(toy_recipe(), tmp_path / "after", progress=Silent())
    train(toy_recipe(), tmp_path / "fresh", progress=Silent())
    assert_same_outcome(tmp_path / "after", tmp_path / "fresh")
    assert metric_rows(tmp_path / "bf16") != metric_rows(tmp_path / "after")
