"""A run in two schedule: what each of them moves, and that a stop anywhere changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attngraft.errors import ConfigError, TrainingError
from attngraft.training.build import build_model
from attngraft.training.freezing import FreezingSchedule
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Parameters, Recipe, recipe_to_dict
from tests.training.processes import finish, start, start_together
from tests.training.toys import assert_same_outcome, final_state, toy_recipe

STEPS = 3
FIRST: tuple[Parameters, ...] = ("grafts", "grafts+head")


def staged(parameters: Parameters = "grafts+head", **sections: Any) -> Recipe:
    """Three epochs of three updates; in the first one only `parameters` are trained. Everything that moves decays."""
    first = {"parameters": parameters, "epochs": 1}
    train_section = {"first": first, "ema": 0.7, "clip_grad": 1.0, "save_every": 1, **sections.pop("train", {})}
    base: dict[str, Any] = {"graft": "cb_s + vertical", "schedule": {"epochs": 3}, "train": train_section}
    return toy_recipe(**(base | {"optimizer": {"weight_decay": 0.2, "layer_decay": 0.8}} | sections))


class StopAt(Silent):
    """Ends a run from inside after an update; the last thing saved is the update before, or the epoch."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step(self, *, step: int, epoch: int, loss: float, lr: float) -> None:
        if step == self._step:
            raise TrainingError("stopped by the test")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    train(staged("grafts"), folder, progress=Silent())
    return folder


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize("parameters", FIRST)
def test_each_stage_moves_its_own_parameters(tmp_path: Path, parameters: Parameters) -> None:
    recipe = staged(parameters)
    model = build_model(recipe, {"num_classes": 3})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    every = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    heads = {name for name in every if name.startswith("head.") and "head" in parameters}
    early = {name for name in every if ".grafts." in name} | heads
    train(recipe, tmp_path, progress=Silent(), stop_after_epoch=1)
    first = final_state(tmp_path)
    assert moved(before, first["model"]) == early
    assert set(first["optimizer"]["state"]) == early
    train(recipe, tmp_path, progress=Silent())
    second = final_state(tmp_path)
    assert moved(first["model"], second["model"]) == every
    assert set(second["optimizer"]["state"]) == every
    steps = {name: int(state["step"]) for name, state in second["optimizer"]["state"].items()}
    assert steps == {name: 3 * STEPS if name in early else 2 * STEPS for name in every}


def test_resumed_within_a_stage_it_moves_what_that_stage_moves(tmp_path: Path) -> None:
    """Grafts alone, then all: what a process that begins in the middle of either moves, update by update."""
    recipe = staged("grafts")
    model = build_model(recipe, {"num_classes": 3})
    states = [{name: value.clone() for name, value in model.state_dict().items()}]
    every = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    for step in range(2, 2 * STEPS + 1):  # a process each, which makes one update that is saved, or an epoch's last one
        with pytest.raises(TrainingError, match="stopped by the test"):
            train(recipe, tmp_path, progress=StopAt(step))
        states.append(final_state(tmp_path)["model"])
    grafts = {name for name in every if ".grafts." in name}
    expected = [grafts] * STEPS + [every] * (STEPS - 1)
    assert [moved(*pair) for pair in itertools.pairwise(states)] == expected


@pytest.mark.parametrize("step", [STEPS, STEPS + 1])
def test_stopped_anywhere_it_ends_the_same(undisturbed: Path, tmp_path: Path, step: int) -> None:
    recipe = staged("grafts")
    with pytest.raises(TrainingError, match="stopped by the test"):
        train(recipe, tmp_path, progress=StopAt(step))
    train(recipe, tmp_path, progress=Silent())
    assert_same_outcome(undisturbed, tmp_path)


@pytest.mark.parametrize("epochs", [(1, 2)])
def test_stopped_between_epochs_it_ends_the_same(undisturbed: Path, tmp_path: Path, epochs: tuple[int, ...]) -> None:
    recipe = staged("grafts")
    for epoch in epochs:
        train(recipe, tmp_path, progress=Silent(), stop_after_epoch=epoch)
    train(recipe, tmp_path, progress=Silent())
    assert_same_outcome(undisturbed, tmp_path)


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_an_optimizer_with_momentum_or_nothing_resumes_across_the_boundary(tmp_path: Path, momentum: float) -> None:
    recipe = staged(optimizer={"name": "momentum", "momentum": momentum, "lr": 0.05, "weight_decay": 0.1})
    train(recipe, tmp_path / "whole", progress=Silent())
    for epoch in (1, 3):
        train(recipe, tmp_path / "parts", progress=Silent(), stop_after_epoch=epoch)
    assert_same_outcome(tmp_path / "whole", tmp_path / "parts")


def test_nothing_to_train_first_is_said() -> None:
    recipe = staged(graft="cb", train={"first": {"parameters": "grafts", "epochs": 1}})
    with pytest.raises(ConfigError, match=r"train\.first\.parameters: grafts leaves nothing to train"):
        FreezingSchedule(build_model(recipe, {"num_classes": 3}), recipe)


def test_the_first_stage_may_be_within_fewer_parameters() -> None:
    recipe = staged(train={"parameters": "grafts+head", "first": {"parameters": "grafts", "epochs": 1}})
    model = build_model(recipe, {"num_classes": 3})
    schedule = FreezingSchedule(model, recipe)

    def trained() -> Iterator[str]:
        return (name for name, parameter in model.named_parameters() if parameter.requires_grad)

    schedule.enter(0)
    assert all(".grafts." in name for name in trained())
    schedule.enter(1)
    assert {name for name in trained() if ".grafts." not in name} == {"head.weight", "head.bias"}


@pytest.mark.slow
def test_two_processes_are_one(tmp_path: Path) -> None:
    """DDP, which has to find out by itself who has a gradient; in float64 there is nothing to be unsure of."""
    host = {"name": "toy_vit_double", "args": {}}
    recipe = staged(host=host, train={"drop_path": None}, task={"train": 48, "val": 9, "double": True})
    one, two = tmp_path / "one", tmp_path / "two"
    plain = recipe_to_dict(recipe)
    processes = [start(plain, one), *start_together(plain, two, processes=2)]
    assert [finish(process) for process in processes] == [0, 0, 0]
    left, right = final_state(one), final_state(two)
    assert left["optimizer"]["state"].keys() == right["optimizer"]["state"].keys()
    for name, value in left["model"].items():
        torch.testing.assert_close(value, right["model"][name], rtol=0, atol=1e-9)
