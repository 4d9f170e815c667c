"""What one run does: the files it leaves, the randomness it uses, the ways in which it fails."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attngraft.errors import AttngraftError, ConfigError, TrainingError, UsageError
from attngraft.training.build import build_model
from attngraft.training.checkpoint import load_weights
from attngraft.training.loop import train
from attngraft.training.progress import LogLines, Silent
from attngraft.training.run_folder import read_run
from tests.training import toys
from tests.training.toys import Toy, ToySplit, assert_same_outcome, final_state, metric_rows, toy_recipe


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


@pytest.mark.oldest
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


def nan_in_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training example 7 is broken in the second epoch."""
    whole = ToySplit.__getitem__

    def broken(self: ToySplit, key: tuple[int, int]) -> tuple[torch.Tensor, int]:
        image, label = whole(self, key)
        training = self.name(7) == "toy/7"
        return (torch.full_like(image, float("nan")) if training and key == (1, 7) else image), label

    monkeypatch.setattr(ToySplit, "__getitem__", broken)


def inf_in_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of the second epoch's second step is infinite, as where a weight underflows; what it is made of is not."""
    whole, calls = Toy.loss, 0

    def exploding(self: Toy, outputs: Any, batch: Any) -> dict[str, torch.Tensor]:
        nonlocal calls
        calls += 1
        losses = whole(self, outputs, batch)
        return losses | {"loss": losses["loss"] * float("inf")} if calls == 5 else losses

    monkeypatch.setattr(Toy, "loss", exploding)


@pytest.mark.parametrize("save_every", [1, None])
@pytest.mark.parametrize(("poison", "value"), [(nan_in_an_image, "nan"), (inf_in_the_loss, "inf")])
def test_a_loss_that_is_not_finite_stops_before_the_weights_move(
    tmp_path: Path, poison: Callable[[pytest.MonkeyPatch], None], value: str, save_every: int | None
) -> None:
    """It is said, nothing of it is kept, and without the cause the run goes on from there to its undisturbed end."""
    recipe = toy_recipe(train={"save_every": save_every, "clip_grad": 1.0, "ema": 0.9})
    undisturbed, run = tmp_path / "undisturbed", tmp_path / "run"
    train(recipe, undisturbed, progress=Silent())
    with pytest.MonkeyPatch.context() as monkeypatch:
        poison(monkeypatch)
        with pytest.raises(TrainingError, match="the loss is not finite in epoch 2, step ") as caught:
            train(recipe, run, progress=Silent())
    message = str(caught.value)
    assert f"loss {value}" in message
    assert "gradient norms: " in message
    report = json.loads((run / "failure.json").read_text())
    assert report["epoch"] == 2
    assert report["losses"]["loss"] == value
    assert len(report["examples"]) == 16
    if poison is nan_in_an_image:
        assert "toy/7" in report["examples"]
        assert report["gradient_norms"]["head.weight"] == "nan"
    else:
        assert report["step"] == 2
        assert report["losses"]["twice"] not in ("nan", "inf")
        assert not np.isfinite(float(report["gradient_norms"]["head.weight"]))
    kept = final_state(run)
    assert kept["counters"]["epoch"] == 1
    assert kept["counters"]["step"] == (report["step"] - 1 if save_every else 0)
    assert all(tensor.isfinite().all() for tensor in kept["model"].values())
    assert not (run / "finished.json").exists()
    assert train(recipe, run, progress=Silent()).finished
    assert_same_outcome(undisturbed, run)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_gradients_norm_is_clipped(tmp_path: Path, accumulate: int) -> None:
    """One step of plain SGD at rate 1 moves the weights by the gradient."""
    moved = {}
    for clip in (None, 1e-3, 1e6):
        recipe = toy_recipe(
            task={"train": 16},
            host={"args": {"drop_rate": 0.0, "proj_drop_rate": 0.0}},
            optimizer={"name": "momentum", "lr": 1.0, "weight_decay": 0.0},
            schedule={"name": "constant", "epochs": 1, "warmup_epochs": 0},
            train={"clip_grad": clip, "accumulate": accumulate, "drop_path": None},
        )
        before = build_model(recipe, {"num_classes": 3}).state_dict()
        train(recipe, tmp_path / str(clip), progress=Silent())
        after = final_state(tmp_path / str(clip))["model"]
        moved[clip] = {name: after[name] - before[name] for name in after}
    norms = {clip: float(torch.cat([d.flatten() for d in parts.values()]).norm()) for clip, parts in moved.items()}
    whole = norms[None]
    assert whole > 0.1
    assert norms[1e6] == pytest.approx(whole, rel=1e-5)
    assert norms[1e-3] == pytest.approx(1e-3, rel=1e-2)
    for name, difference in moved[1e-3].items():  # all by one factor
        torch.testing.assert_close(difference, moved[None][name] * 1e-3 / whole, rtol=0, atol=1e-6)


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    from attngraft.training.checkpoint import save
    from attngraft.training.run_folder import RunFolder
    from attngraft.training.setup import create_accelerator, prepare_run

    recipe = toy_recipe()
    run = RunFolder(tmp_path)
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    context = prepare_run(recipe, run, create_accelerator(recipe))
    save(run, context.state)
    good = run.last.read_bytes()
    with torch.no_grad():
        context.update.core.get_parameter("head.weight")[0, 0] = float("inf")
    with pytest.raises(TrainingError, match=r"not finite .*head\.weight.*is intact"):
        save(run, context.state)
    assert run.last.read_bytes() == good


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"task": {"trains": 3}}, ConfigError, r"task\.trains.*did you mean train\?"),
        (
            {"host": {"args": {"img_size": 20}}},
            UsageError,
            "image size 20 is not a multiple of the patch size 8; use .*=16",
        ),
        ({"host": {"name": "toy_vitt", "args": {}}}, AttngraftError, "toy_vitt.*did you mean toy_vit"),
        ({"host": {"args": {"wings": 2}}}, AttngraftError, "cannot create toy_vit with wings=2"),
        ({"host": {"args": {"num_classes": 4}}}, ConfigError, "host.args.num_classes is 4, but the data require 3"),
        ({"graft": "cb_x"}, AttngraftError, "did you mean"),
        ({"train": {"amp": "fp16"}}, ConfigError, "train.amp: fp16 requires a GPU"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    if "amp" in str(changes) and torch.accelerator.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(error, match=message):
        train(toy_recipe(**changes), tmp_path / "new" / "run", progress=Silent())
    assert not list(tmp_path.iterdir())


def test_a_learning_rate_that_overflows_is_named(tmp_path: Path) -> None:
    schedule = {"epochs": 2, "warmup_epochs": 1, "warmup_lr": 1e300}
    with pytest.raises(ConfigError, match=r"learning rate of epoch 1, update 1 is 1e\+300, above 1e\+30; lower"):
        train(toy_recipe(schedule=schedule), tmp_path, progress=Silent())


@pytest.mark.parametrize(
    "changes", [{"amp": "bf16"}, {"channels_last": True}, {"threads": 1}, {"ema_warmup": True, "ema": 0.9}]
)
def test_ways_of_computing(tmp_path: Path, changes: dict[str, Any]) -> None:
    threads = torch.get_num_threads()
    record = train(toy_recipe(task={"noise": 0.05}, schedule={"epochs": 6}, train=changes), tmp_path, progress=Silent())
    assert record.epochs[-1]["train/loss"] < record.epochs[0]["train/loss"]
    assert torch.get_num_threads() == threads
    assert all(tensor.dtype == torch.float32 for tensor in final_state(tmp_path)["model"].values())


@pytest.mark.parametrize("asked", [False, True])
def test_channels_last_reaches_the_model_and_its_inputs(
    tmp_path: Path, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every forward pass, of training and evaluation."""
    seen: dict[bool, set[tuple[bool, bool]]] = {True: set(), False: set()}
    forward = toys._Normed.forward

    def watched(self: toys._Normed, x: torch.Tensor) -> torch.Tensor:
        last = torch.channels_last
        both = (x.is_contiguous(memory_format=last), self.stem.weight.is_contiguous(memory_format=last))
        seen[self.training].add(both)
        return forward(self, x)

    monkeypatch.setattr(toys._Normed, "forward", watched)
    host = {"name": "toy_normed", "args": {"drop_rate": 0.0}}
    train(toy_recipe(host=host, train={"channels_last": asked}), tmp_path, progress=Silent())
    assert seen == {True: {(asked, asked)}, False: {(asked, asked)}}


@pytest.mark.parametrize("asked", [False, True])
def test_a_run_is_compiled_if_asked(tmp_path: Path, asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass in training goes through what the compiler gave back (here: what it was given)."""
    compiled: list[torch.nn.Module] = []
    calls: list[bool] = []

    def compiler(call: Any, **_: Any) -> Any:
        model = call.__self__
        compiled.append(model)

        def run(*args: Any, **kwargs: Any) -> Any:
            calls.append(model.training)
            return call(*args, **kwargs)

        return run

    monkeypatch.setattr(torch, "compile", compiler)
    train(toy_recipe(train={"compile": asked}), tmp_path, progress=Silent())
    assert [type(model).__name__ for model in compiled] == ["VisionTransformer"] * asked
    assert calls.count(True) == 6 * asked
    assert calls.count(False) >= asked


@pytest.mark.slow
def test_a_compiled_run_saves_plain_names_and_computes_the_same(tmp_path: Path) -> None:
    """Without dropout, whose random numbers the compiler draws in another order."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for name in ("plain", "compiled"):
        recipe = toy_recipe(
            host={"args": {"drop_rate": 0.0, "proj_drop_rate": 0.0, "depth": 1}},
            train={"compile": name == "compiled", "drop_path": None},
            graft="cb_s",
        )
        train(recipe, tmp_path / name, progress=Silent())
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        assert bool(graphs) == (name == "compiled")
    compiled, plain = (final_state(tmp_path / name)["model"] for name in ("compiled", "plain"))
    assert list(compiled) == list(plain)
    for left, right in zip(metric_rows(tmp_path / "compiled"), metric_rows(tmp_path / "plain"), strict=True):
        assert left == pytest.approx(right, rel=1e-3, abs=1e-3)


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
