"""Losses that are normalized by something else than the number of examples, over micro-batches and processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attngraft.tasks.task import TASKS, Batch, Loss, StepContext
from attngraft.training.build import build_model
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe, recipe_from_dict, recipe_to_dict
from tests.training.processes import finish, start, start_together
from tests.training.toys import CLASSES, Toy, assert_same_outcome, final_state, metric_rows, toy_recipe

WEIGHT = 3.0  #: of an example of class 0; those of other classes count once


class Weighted(Toy):
    """A loss to which examples contribute different weights, and one that is only reported."""

    name = "weighted_toy"

    def weights(self, batch: Batch) -> Mapping[str, float]:
        return {"parts": float(self.of_examples(batch).sum())}

    def of_examples(self, batch: Batch) -> torch.Tensor:
        return torch.where(batch["label"] == 0, WEIGHT, 1.0)

    def step(self, model: nn.Module, batch: Batch, at: StepContext) -> Mapping[str, Loss]:
        args, kwargs = self.to_model(batch)
        losses, weights = (
            F.cross_entropy(model(*args, **kwargs), batch["label"], reduction="none"),
            self.of_examples(batch),
        )
        mean = (losses * weights).sum() / weights.sum().clamp(min=1)
        return {"parts": Loss(mean=mean, factor=0.5), "shown": Loss(mean=losses.mean(), trained=False)}


class Unweighted(Weighted):
    """Nothing can be learned from its batches."""

    name = "unweighted_toy"

    def weights(self, batch: Batch) -> Mapping[str, float]:
        return {"parts": 0.0}

    def step(self, model: nn.Module, batch: Batch, at: StepContext) -> Mapping[str, Loss]:
        return {"parts": Loss(mean=0 * super().step(model, batch, at)["parts"].mean)}


def register() -> None:
    for task in (Weighted, Unweighted):
        TASKS[task.name] = f"{__name__}:{task.__name__}"


register()


def recipe(name: str = "weighted_toy", **train_section: Any) -> Recipe:
    """Plain gradient descent, without random draws."""
    still = {"host": {"name": "toy_vit"}, "optimizer": {"name": "momentum", "lr": 0.1, "weight_decay": 0.1}}
    section = {"batch_size": 16, "drop_path": 0.0, **train_section}
    plain = recipe_to_dict(toy_recipe(task={"name": name}, train=section))
    return recipe_from_dict({**plain, **still})


def assert_close(one: Path, other: Path) -> None:
    for left, right in zip(metric_rows(one), metric_rows(other), strict=True):
        assert left == pytest.approx(right, rel=1e-4, abs=1e-5)
    weights, others = final_state(one)["model"], final_state(other)["model"]
    for name in weights:
        torch.testing.assert_close(weights[name], others[name], rtol=1e-4, atol=1e-5)


def test_micro_batches_are_weighted_as_one_batch(tmp_path: Path) -> None:
    train(recipe(), tmp_path / "one", progress=Silent())
    train(recipe(accumulate=4), tmp_path / "four", progress=Silent())
    [row, *_] = metric_rows(tmp_path / "one")
    assert row["train/loss"] == pytest.approx(0.5 * row["train/parts"], rel=1e-5)
    shown = [metric_rows(tmp_path / name)[0].pop("train/shown") for name in ("one", "four")]
    assert shown[0] == pytest.approx(shown[1], rel=1e-4)
    assert_close(tmp_path / "one", tmp_path / "four")


@pytest.mark.slow
def test_processes_are_weighted_as_one_batch(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    plain = recipe_to_dict(recipe(accumulate=2))
    processes = [start(plain, one, prepare=register), *start_together(plain, two, processes=2, prepare=register)]
    assert [finish(process) for process in processes] == [0, 0, 0]
    assert_close(one, two)


def test_an_update_without_weight_moves_nothing(tmp_path: Path) -> None:
    """Neither weight decay nor momentum."""
    train(recipe("unweighted_toy"), tmp_path / "one", progress=Silent())
    train(recipe("unweighted_toy", accumulate=2), tmp_path / "two", progress=Silent())
    initial = build_model(recipe("unweighted_toy"), {"num_classes": CLASSES}).state_dict()
    found = final_state(tmp_path / "one")["model"]
    assert all(torch.equal(value, initial[name]) for name, value in found.items())
    assert_same_outcome(tmp_path / "one", tmp_path / "two")
