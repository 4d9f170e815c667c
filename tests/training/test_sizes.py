from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attngraft.errors import ConfigError, TrainingError
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.run_folder import RunFolder
from attngraft.training.sizes import cut_between, cut_note, fit_sizes, sizes, with_cut
from tests.training.toys import ToyConfig, ToySplit, toy_recipe

STAGES = [{"name": "a", "epochs": 1, "batch_size": 96}, {"name": "b", "epochs": 1}]


def split(examples: int) -> ToySplit:
    return ToySplit(examples, ToyConfig(), seed=0, first=0)


@pytest.mark.parametrize(
    ("given", "examples", "world", "fitted"),
    [
        ({"batch_size": 48}, 48, 1, (48, 1, None)),
        ({"batch_size": 128}, 61, 1, (61, 1, 128)),
        ({"batch_size": 128, "accumulate": 4}, 61, 1, (60, 4, 32)),
        ({"batch_size": 128, "accumulate": 4}, 61, 2, (56, 4, 32)),
        ({"batch_size": 128, "accumulate": 64, "eval_batch_size": 9}, 40, 1, (40, 40, 9)),
    ],
)
def test_batches_are_cut_to_the_training_split(
    given: dict[str, int], examples: int, world: int, fitted: tuple[Any, ...]
) -> None:
    recipe = toy_recipe(train=given)
    found = fit_sizes(recipe, split(examples), world=world)
    assert (found.train.batch_size, found.train.accumulate, found.train.eval_batch_size) == fitted
    assert with_cut(recipe, cut_between(recipe, found)) == found
    assert fit_sizes(found, split(examples), world=world) == found


def test_batches_of_stages_are_cut(tmp_path: Path) -> None:
    recipe = toy_recipe(schedule={"epochs": 2}, stages=STAGES)
    assert sizes(fit_sizes(recipe, split(48)))["stages.a.batch_size"] == 48
    own = [{**STAGES[0], "task": {"train": 20}}, STAGES[1]]
    record = train(toy_recipe(schedule={"epochs": 2}, stages=own), tmp_path, progress=Silent())
    assert record.cut["stages.a.batch_size"] == [96, 20]
    assert [stage.batch_size for stage in record.recipe.stages] == [20, None]
    assert "stages.a.batch_size from 96 to 20" in cut_note(record.cut)


def test_a_cut_run_resumes_with_the_recipe_that_was_given(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recipe = toy_recipe(schedule={"epochs": 3}, train={"batch_size": 128})
    with caplog.at_level("INFO"):
        whole = train(recipe, tmp_path / "whole", progress=Silent())
    note = "Cut to the number of training examples: train.batch_size from 128 to 48."
    assert note in caplog.text
    train(recipe, tmp_path / "parts", progress=Silent(), stop_after_epoch=1)
    parts = train(recipe, tmp_path / "parts", progress=Silent())
    assert cut_note(parts.cut) == note
    assert parts.recipe.train.batch_size == 48
    losses = [[row["train/loss"] for row in record.epochs] for record in (whole, parts)]
    assert losses[0] == losses[1]
    with pytest.raises(TrainingError, match="train.batch_size"):
        RunFolder(tmp_path / "parts").refuse_other_recipe(toy_recipe(schedule={"epochs": 3}, train={"batch_size": 64}))


def test_more_processes_than_examples_are_refused() -> None:
    from attngraft.training.loading import train_order

    recipe = fit_sizes(toy_recipe(train={"batch_size": 16}), split(3), world=4)
    with pytest.raises(ConfigError, match="more than an epoch's 3 training examples: use fewer processes"):
        train_order(recipe, split(3), world=4)
