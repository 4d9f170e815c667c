"""Splits that form their own batches: by length here, of different numbers of examples, another number in each epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from attngraft.errors import ConfigError, TrainingError
from attngraft.training.loading import TrainOrder
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import recipe_to_dict
from tests.training.processes import finish, start, start_together
from tests.training.test_stages import StopAt
from tests.training.toys import ToyConfig, ToySplit, assert_same_outcome, final_state, metric_rows, toy_recipe


def budget(length: int = 24) -> ToySplit:
    return ToySplit(length, ToyConfig(budget=100), seed=0, first=0)


def test_parts_are_even_and_make_up_the_batches() -> None:
    """Over processes and micro-batches."""
    orders = [TrainOrder(split=budget(), seed=3, batch_size=4, accumulate=2, rank=rank, world=2) for rank in (0, 1)]
    whole = TrainOrder(split=budget(), seed=3, batch_size=4)
    counts = {whole.steps_of(epoch) for epoch in range(6)}
    assert len(counts) > 1
    assert whole.updates_before(6) == sum(whole.steps_of(epoch) for epoch in range(6))
    assert whole.epochs_of(whole.updates_before(4)) == 4
    assert whole.epochs_of(whole.updates_before(4) + 1) == 5
    for epoch in range(3):
        seen: list[int] = []
        for step in range(whole.steps_of(epoch)):
            [batch] = whole.micro_batches(epoch, step)
            parts = [part for order in orders for part in order.micro_batches(epoch, step)]
            assert [key for part in parts for key in part] == batch
            sizes = list(map(len, parts))
            assert max(sizes) - min(sizes) <= 1
            assert orders[0].part_sizes(epoch, step) == (sizes if max(sizes) > min(sizes) else None)
            seen += [index for _, index in batch]
        assert len(set(seen)) == len(seen) > 18
    stream = list(whole.stream(epoch=0, step=0, epochs=3))
    assert list(whole.stream(epoch=1, step=1, epochs=3)) == stream[whole.steps + 1 :]


def test_an_empty_part_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    recipe = toy_recipe(task={"budget": 100, "train": 24}, train={"accumulate": 8})
    with pytest.raises(
        ConfigError, match=r"train\.accumulate: batch \d+ of epoch 1 has \d examples, which cannot be cut"
    ):
        train(recipe, tmp_path / "run", progress=Silent())
    assert not any(path.is_file() for path in (tmp_path / "run").rglob("*") if path.name != ".lock")


@pytest.mark.parametrize("step", [2, 4, 6])
def test_stopped_anywhere_it_ends_the_same(tmp_path: Path, step: int) -> None:
    recipe = toy_recipe(task={"budget": 100, "train": 24}, train={"save_every": 1, "ema": 0.9, "ema_warmup": True})
    train(recipe, tmp_path / "one", progress=Silent())
    with pytest.raises(TrainingError, match="stopped by the test"):
        train(recipe, tmp_path / "two", progress=StopAt(step))
    train(recipe, tmp_path / "two", progress=Silent())
    assert_same_outcome(tmp_path / "one", tmp_path / "two")


def test_uneven_micro_batches_make_the_same_update(tmp_path: Path) -> None:
    quiet = {"host": {"name": "toy_vit_double", "args": {}}}
    for parts in (1, 2):
        recipe = toy_recipe(
            task={"budget": 100, "train": 24, "double": True}, train={"drop_path": None, "accumulate": parts}, **quiet
        )
        train(recipe, tmp_path / str(parts), progress=Silent())
    one, two = (final_state(tmp_path / name)["model"] for name in "12")
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=1e-12)
    for first, second in zip(metric_rows(tmp_path / "1"), metric_rows(tmp_path / "2"), strict=True):
        assert first["train/loss"] == pytest.approx(second["train/loss"], abs=1e-12)


@pytest.mark.slow
def test_two_processes_are_one(tmp_path: Path) -> None:
    host = {"name": "toy_vit_double", "args": {}}
    recipe = toy_recipe(
        host=host, train={"drop_path": None}, task={"budget": 100, "train": 24, "val": 9, "double": True}
    )
    plain = recipe_to_dict(recipe)
    processes = [start(plain, tmp_path / "1"), *start_together(plain, tmp_path / "2", processes=2)]
    assert [finish(process) for process in processes] == [0, 0, 0]
    one, two = (final_state(tmp_path / name)["model"] for name in "12")
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=0, atol=1e-9)
    losses = [[row["train/loss"] for row in metric_rows(tmp_path / name)] for name in "12"]
    assert np.allclose(*losses, atol=1e-9)
