"""The recipe's `stages`: settings of their own, patience, and that a stop anywhere changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attngraft.errors import ConfigError, TrainingError
from attngraft.study import compare
from attngraft.study.config import study_from_dict
from attngraft.tasks.task import Batch, Loss, StepContext
from attngraft.training.build import build_model
from attngraft.training.checkpoint import load_weights
from attngraft.training.loop import Trainer, train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe, recipe_from_dict, recipe_to_dict, recipe_to_yaml
from attngraft.training.stages import StagePlan
from attngraft.training.stopping import Interrupted
from tests.slow import product_but
from tests.training.processes import finish, start, start_together
from tests.training.test_stages import StopAt
from tests.training.toys import Toy, assert_same_outcome, final_state, metric_rows, toy_recipe

STEPS = 3
#: everything that a stage may change
ALL: list[dict[str, Any]] = [
    {"name": "warm", "epochs": 1, "parameters": "grafts+head"},
    {"name": "long", "epochs": 2, "lr": 0.01, "schedule": {"warmup_epochs": 0}, "optimizer": "fresh"},
    {"name": "tune", "epochs": 1, "start": "best", "task": {"smoothing": 0.2}, "parameters": "head"},
    {"name": "end", "optimizer": "fresh"},
]


def staged(stages: list[dict[str, Any]], *, epochs: int = 5, **sections: Any) -> Recipe:
    train_section = {"ema": 0.7, "save_every": 1, **sections.pop("train", {})}
    base = {"graft": "cb_s", "schedule": {"epochs": epochs, "warmup_epochs": 0.5}, "stages": stages}
    return toy_recipe(**(base | {"train": train_section} | sections))


class Rates(Silent):
    """Keeps the learning rates."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_step(self, *, step: int, epoch: int, loss: float, lr: float) -> None:
        self.rates.append(lr)


class Steps(Silent):
    """Keeps the numbers of updates and epochs."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.epochs: list[int] = []

    def on_start(self, total_steps: int, *, done_steps: int, epochs: int, steps_per_epoch: int) -> None:
        self.total, self.done = total_steps, done_steps

    def on_step(self, *, step: int, epoch: int, loss: float, lr: float) -> None:
        self.steps.append(step)
        self.epochs.append(epoch)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    train(staged(ALL), folder, progress=Silent())
    return folder


@pytest.mark.parametrize("step", [3, 4, 10, 13, *product_but([1, 6, 9, 12, 15], [15])])
def test_stopped_anywhere_it_ends_the_same(undisturbed: Path, tmp_path: Path, step: int) -> None:
    with pytest.raises(TrainingError, match="stopped by the test"):
        train(staged(ALL), tmp_path, progress=StopAt(step))
    train(staged(ALL), tmp_path, progress=Silent())
    assert_same_outcome(undisturbed, tmp_path)


@pytest.mark.parametrize("epochs", [(1, 2, 3, 4), (3,)])
def test_stopped_between_epochs_it_ends_the_same(undisturbed: Path, tmp_path: Path, epochs: tuple[int, ...]) -> None:
    for epoch in epochs:
        train(staged(ALL), tmp_path, progress=Silent(), stop_after_epoch=epoch)
    train(staged(ALL), tmp_path, progress=Silent())
    assert_same_outcome(undisturbed, tmp_path)


def test_train_first_is_two_stages(tmp_path: Path) -> None:
    """Bit for bit."""
    first = {"first": {"parameters": "grafts+head", "epochs": 2}}
    train(staged([], epochs=3, train=first), tmp_path / "first", progress=Silent())
    stages = [{"name": "a", "epochs": 2, "parameters": "grafts+head"}, {"name": "b"}]
    train(staged(stages, epochs=3), tmp_path / "stages", progress=Silent())
    assert_same_outcome(tmp_path / "first", tmp_path / "stages")


def test_a_stage_has_a_schedule_of_its_own_and_the_next_goes_on_with_the_runs(tmp_path: Path) -> None:
    whole, parts = Rates(), Rates()
    train(staged([]), tmp_path / "whole", progress=whole)
    own = {"warmup_epochs": 0, "min_lr": 0.0, "name": "cosine"}
    stages = [{"name": "a", "epochs": 2}, {"name": "b", "epochs": 1, "lr": 0.5, "schedule": own}, {"name": "c"}]
    train(staged(stages), tmp_path / "parts", progress=parts)
    assert parts.rates[: 2 * STEPS] + parts.rates[3 * STEPS :] == whole.rates[: 2 * STEPS] + whole.rates[3 * STEPS :]
    assert parts.rates[2 * STEPS] == 0.5
    assert parts.rates[2 * STEPS : 3 * STEPS] == sorted(parts.rates[2 * STEPS : 3 * STEPS], reverse=True)


def test_an_optimizer_may_forget(tmp_path: Path) -> None:
    for kind, expected in (("keep", 2 * STEPS), ("fresh", STEPS)):
        stages = [{"name": "a", "epochs": 1}, {"name": "b", "optimizer": kind}]
        train(staged(stages, epochs=2), tmp_path / kind, progress=Silent())
        states = final_state(tmp_path / kind)["optimizer"]["state"].values()
        assert {int(state["step"]) for state in states} == {expected}


def test_a_stage_may_start_from_the_best_weights_of_the_stage_before(tmp_path: Path) -> None:
    """Its learning rate of zero leaves them as they are; the stage before is worse than the one before that."""
    no_warmup = {"warmup_epochs": 0}
    stages = [
        {"name": "good", "epochs": 2},
        {"name": "ruin", "epochs": 2, "lr": 30.0, "schedule": no_warmup},
        {"name": "still", "start": "best", "lr": 0.0, "schedule": {"warmup_lr": 0.0, "min_lr": 0.0}},
    ]
    recipe = staged(stages, graft=None)
    train(recipe, tmp_path, progress=Silent())
    model = build_model(recipe, {"num_classes": 3})
    assert load_weights(tmp_path / "checkpoints" / "best.safetensors", model)["epoch"] <= 2
    facts = load_weights(tmp_path / "checkpoints" / "best-stage2.safetensors", model)
    rows = metric_rows(tmp_path)
    assert facts["epoch"] == (3 if rows[2]["val/top1"] >= rows[3]["val/top1"] else 4)
    last = final_state(tmp_path)["model"]
    assert all(torch.equal(value, last[name]) for name, value in model.state_dict().items())


#: 3, 2 (of 24), 1 (of 16 examples), 6 (of 8) and again 3 updates per epoch
BATCHES: list[dict[str, Any]] = [
    {"name": "run", "epochs": 1},
    {"name": "large", "epochs": 2, "batch_size": 24, "lr": 0.01, "schedule": {"warmup_epochs": 0.5}},
    {"name": "less", "epochs": 1, "task": {"train": 16}, "optimizer": "fresh"},
    {"name": "small", "epochs": 1, "batch_size": 8, "start": "best"},
    {"name": "end"},
]


def batched() -> Recipe:
    return staged(BATCHES, epochs=6, train={"ema_warmup": True})


@pytest.fixture(scope="module")
def batched_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batched")
    train(batched(), folder, progress=Silent())
    return folder


def test_a_stage_may_have_batches_and_data_of_its_own(batched_run: Path, tmp_path: Path) -> None:
    progress = Steps()
    train(batched(), tmp_path, progress=progress)
    assert_same_outcome(batched_run, tmp_path)
    assert progress.total == 17
    assert progress.steps == list(range(1, 18))
    assert progress.epochs == [1] * 3 + [2] * 2 + [3] * 2 + [4] + [5] * 6 + [6] * 3


@pytest.mark.parametrize("step", product_but([3, 4, 5, 7, 8, 9, 11, 14, 15, 17], [4, 8, 15]))
def test_stopped_in_a_stage_with_other_batches_it_ends_the_same(batched_run: Path, tmp_path: Path, step: int) -> None:
    with pytest.raises(TrainingError, match="stopped by the test"):
        train(batched(), tmp_path, progress=StopAt(step))
    progress = Steps()
    train(batched(), tmp_path, progress=progress)
    assert progress.steps == list(range(progress.done + 1, 18))
    assert_same_outcome(batched_run, tmp_path)


def test_the_rates_of_the_runs_schedule_follow_the_epochs_whatever_the_batches(tmp_path: Path) -> None:
    whole, parts = Rates(), Rates()
    train(staged([], epochs=3), tmp_path / "whole", progress=whole)
    stages = [{"name": "a", "epochs": 1}, {"name": "b", "epochs": 1, "batch_size": 8}, {"name": "c"}]
    train(staged(stages, epochs=3), tmp_path / "parts", progress=parts)
    assert parts.rates[:3] + parts.rates[3:9:2] + parts.rates[9:] == pytest.approx(whole.rates)


def test_an_epoch_that_is_only_evaluated_after_resuming_keeps_its_rate(tmp_path: Path, monkeypatch: Any) -> None:
    recipe = staged([{"name": "a", "epochs": 1}, {"name": "b", "lr": 0.01}], epochs=2)
    train(recipe, tmp_path / "whole", progress=Silent())
    whole = Trainer._evaluate_weights

    def stop(self: Trainer, *, average: bool = False) -> Any:
        return None if self.done == 2 * STEPS else whole(self, average=average)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_evaluate_weights", stop)
        with pytest.raises(Interrupted):
            train(recipe, tmp_path / "parts", progress=Silent())
    train(recipe, tmp_path / "parts", progress=Silent())
    assert_same_outcome(tmp_path / "whole", tmp_path / "parts")


def test_a_step_sees_its_stage_and_a_stage_its_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, float]] = []
    whole = Toy.step

    def step(self: Toy, model: nn.Module, batch: Batch, at: StepContext) -> Mapping[str, Loss]:
        seen.append((at.stage, at.epoch, self.config.smoothing))
        return whole(self, model, batch, at)

    monkeypatch.setattr(Toy, "step", step)
    train(staged(ALL), tmp_path, progress=Silent())
    assert list(dict.fromkeys(seen)) == [
        ("warm", 0, 0), ("long", 1, 0), ("long", 2, 0), ("tune", 3, 0.2), ("end", 4, 0),
    ]  # fmt: skip


def test_patience_ends_a_stage() -> None:
    recipe = staged(
        [{"name": "a", "epochs": 5, "patience": 2}, {"name": "b", "patience": 1, "metric": "nll"}], epochs=9
    )
    task = Toy.from_config({}, seed=0)

    def at(values: list[float], losses: list[float]) -> tuple[int, int] | None:
        rows = [
            {"epoch": number, "val/top1": value, "val/nll": loss}
            for number, (value, loss) in enumerate(zip(values, losses, strict=True), start=1)
        ]
        return StagePlan(recipe, task).at(len(rows), rows)

    assert at([1, 2, 2], [0] * 3) == (0, 0)
    assert at([1, 2, 2, 2], [0] * 4) == (1, 4)
    assert at([1, 2, 3, 4, 5], [0] * 5) == (1, 5)
    assert at([1, 2, 2, 2, 0], [0, 0, 0, 0, 1]) == (1, 4)
    assert at([1, 2, 2, 2, 0, 0], [0, 0, 0, 0, 1, 2]) == (1, 4)  # this toy's metrics are all better when higher
    assert at([1, 2, 2, 2, 0, 0], [0, 0, 0, 0, 2, 1]) is None
    assert at([1, float("nan"), float("nan")], [0] * 3) == (1, 3)


def test_a_run_without_patience_left_is_finished_and_a_study_says_so(tmp_path: Path) -> None:
    """With a learning rate of zero nothing ever gets better."""
    still = {"lr": 0.0, "schedule": {"warmup_lr": 0.0, "min_lr": 0.0}}
    recipe = staged([{"name": "a", "patience": 2, **still}], epochs=9, graft=None)
    record = train(recipe, tmp_path / "run", progress=Silent())
    assert record.finished
    assert [(row["epoch"], row["step"]) for row in record.epochs] == [(1, 3), (2, 6), (3, 9)]
    assert record.predictions is not None
    (tmp_path / "recipe.yaml").write_text(recipe_to_yaml(recipe))
    study = {"grafts": ["cb_s"], "recipe": str(tmp_path / "recipe.yaml"), "seeds": 1, "out": str(tmp_path / "out")}
    compare(study_from_dict(study), costs=False)
    assert "at the last epoch of each run (at most 9)" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"stages": [{"name": "a", "batch_size": 9}], "train": {"accumulate": 2}}, "must be a multiple of train.accumulate"),
        ({"stages": [{"name": "a", "epochs": 1}]}, "together have 1 epochs and schedule.epochs is 2"),
        ({"stages": [{"name": "a"}, {"name": "b"}]}, "stages.a.epochs: is missing"),
        ({"stages": [{"name": "a", "epochs": 1}, {"name": "a"}]}, "must have different names"),
        ({"stages": [{"name": "a", "start": "best"}]}, "stages.a.start: is best, but no stage comes before"),
        ({"stages": [{"name": "a", "parameters": "all"}], "train": {"parameters": "head"}}, "must not be more than"),
        ({"stages": [{"name": "a"}], "train": {"first": {}}}, "stages: cannot be combined with train.first"),
        ({"stages": [{"name": "a"}], "train": {"eval_every": 3}}, "count epochs, so schedule.steps"),
        ({"stages": [{"name": "a", "metric": "nll"}]}, "metric: requires a patience"),
        ({"stages": [{"name": "a", "schedule": {"epochs": 3}}]}, "schedule: counts the stage's epochs"),
    ],
)  # fmt: skip
def test_stages_that_cannot_be_are_refused(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        recipe_from_dict({"schedule": {"epochs": 2}, **sections})


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        ({"task": {"nose": 16}}, "task.nose: unknown field"),
        ({"schedule": {"warmup": 3}}, "stages.a.schedule.warmup: unknown field"),
        ({"patience": 1, "metric": "bleu"}, "stages.a.metric: unknown metric 'bleu'; known: top1, nll"),
    ],
)
def test_stages_that_do_not_fit_the_task_are_refused(tmp_path: Path, stage: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        train(staged([{"name": "a", **stage}]), tmp_path, progress=Silent())


@pytest.mark.slow
def test_two_processes_are_one(tmp_path: Path) -> None:
    host = {"name": "toy_vit_double", "args": {}}
    recipe = staged(ALL, host=host, train={"drop_path": None}, task={"train": 48, "val": 9, "double": True})
    plain = recipe_to_dict(recipe)
    processes = [start(plain, tmp_path / "1"), *start_together(plain, tmp_path / "2", processes=2)]
    assert [finish(process) for process in processes] == [0, 0, 0]
    one: dict[str, Tensor] = final_state(tmp_path / "1")["model"]
    two = final_state(tmp_path / "2")["model"]
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=0, atol=1e-9)
    assert len(metric_rows(tmp_path / "2")) == 5
