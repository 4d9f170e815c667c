"""Two processes (gloo, CPU) are one process with the same global batch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from attngraft.errors import DataError
from attngraft.tasks.task import TaskData
from attngraft.training import setup
from attngraft.training.recipe import recipe_to_dict
from tests.training.processes import finish, start, start_together
from tests.training.toys import assert_same_outcome, final_state, metric_rows, toy_recipe


def exact_recipe(*, double: bool, **train: Any) -> dict[str, Any]:
    """Five updates without dropout; the validation split cannot be shared evenly."""
    recipe = toy_recipe(
        host={"name": "toy_vit_double" if double else "toy_vit", "args": {}},
        task={"train": 80, "val": 9, "double": double},
        optimizer={"lr": 3e-3, "weight_decay": 0.1},
        schedule={"epochs": 1, "warmup_epochs": 0},
        train={"batch_size": 16, "drop_path": None, "clip_grad": 1.0, "ema": 0.5, **train},
    )
    return recipe_to_dict(recipe)


def run_one_and_two(recipe: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    one, two = folder / "one", folder / "two"
    processes = [start(recipe, one), *start_together(recipe, two, processes=2)]
    assert [finish(process) for process in processes] == [0, 0, 0]
    return one, two


@pytest.mark.slow
def test_float64_parameters_agree(tmp_path: Path) -> None:
    one, two = run_one_and_two(exact_recipe(double=True), tmp_path)
    for section in ("model", "ema"):
        left, right = final_state(one)[section], final_state(two)[section]
        assert list(left) == list(right)
        for name in left:
            assert left[name].dtype == torch.float64
            torch.testing.assert_close(left[name], right[name], rtol=0, atol=1e-9)


@pytest.mark.slow
def test_float32_losses_and_logits_agree_and_every_example_is_evaluated_once(tmp_path: Path) -> None:
    one, two = run_one_and_two(exact_recipe(double=False, accumulate=2), tmp_path)
    for left, right in zip(metric_rows(one), metric_rows(two), strict=True):
        assert left == pytest.approx(right, rel=0, abs=1e-5)
    with np.load(one / "predictions.npz") as a, np.load(two / "predictions.npz") as b:
        assert a["name"].tolist() == b["name"].tolist() == [f"toy/{1000 + i}" for i in range(9)]
        np.testing.assert_allclose(a["logits"], b["logits"], rtol=0, atol=1e-5)


def test_processes_that_found_other_data_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    split: Any = None
    data = TaskData(train=split, val=split, model_args={}, facts={"sizes": {"train": 9}})
    two: Any = SimpleNamespace(num_processes=2)
    monkeypatch.setattr(setup, "gather_object", lambda own: own * 2)
    setup._refuse_other_data(two, data)
    monkeypatch.setattr(setup, "gather_object", lambda own: [*own, '{"sizes": {"train": 8}}'])
    with pytest.raises(DataError, match="the processes of this run found different data"):
        setup._refuse_other_data(two, data)


@pytest.mark.slow
def test_two_processes_stop_together_and_go_on_to_the_same_end(tmp_path: Path) -> None:
    recipe = recipe_to_dict(
        toy_recipe(task={"train": 320}, schedule={"epochs": 3}, train={"ema": 0.9, "save_every": 4})
    )
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert [finish(process) for process in start_together(recipe, whole, processes=2)] == [0, 0]
    pair = start_together(recipe, stopped, processes=2)
    while not (stopped / "checkpoints" / "last.pt").exists():
        pair[0].join(0.005)
        assert pair[0].is_alive()
    pair[1].terminate()  # only one of them is told
    assert [finish(process) for process in pair] == [130, 130]
    assert not (stopped / "finished.json").exists()
    assert [finish(process) for process in start_together(recipe, stopped, processes=2)] == [0, 0]
    assert_same_outcome(whole, stopped)
