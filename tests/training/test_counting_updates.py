"""Runs that count updates: their length, their evaluations, and what a stop between them leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from attngraft.errors import ConfigError, TrainingError, UsageError
from attngraft.results.study import StudyResult
from attngraft.study import compare
from attngraft.study.config import study_from_dict
from attngraft.training.loop import train
from attngraft.training.optimizer import create_schedule, learning_rate
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe, recipe_from_dict, recipe_to_yaml
from tests.training.test_stages import StopAt
from tests.training.toys import assert_same_outcome, final_state, metric_rows, toy_recipe


def counted(steps: int | None = 8, every: int | None = 5, **train_section: Any) -> Recipe:
    """Epochs of three updates."""
    schedule = {"epochs": 3} if steps is None else {"steps": steps, "warmup_steps": 2, "warmup_epochs": None}
    return toy_recipe(schedule=schedule, train={"eval_every": every, "ema": 0.7, **train_section})


@pytest.mark.parametrize(
    ("steps", "every", "rows"),
    [
        (8, 5, [(2, 5), (3, 8)]),
        (8, None, [(1, 3), (2, 6), (3, 8)]),
        (6, 3, [(1, 3), (2, 6)]),
        (None, 2, [(1, 2), (2, 4), (2, 6), (3, 8), (3, 9)]),
    ],
)
def test_evaluations_are_where_they_were_asked_for(
    tmp_path: Path, steps: int | None, every: int | None, rows: list[tuple[int, int]]
) -> None:
    record = train(counted(steps, every), tmp_path, progress=Silent())
    assert record.finished
    assert [(row["epoch"], row["step"]) for row in record.epochs] == rows
    optimizer = final_state(tmp_path)["optimizer"]["state"]
    assert {int(state["step"]) for state in optimizer.values()} == {rows[-1][1]}


@pytest.mark.parametrize("step", [1, 3, 5, 6, 8])
@pytest.mark.slow
def test_stopped_anywhere_it_ends_the_same(tmp_path: Path, step: int) -> None:
    recipe = counted(save_every=1)
    train(recipe, tmp_path / "one", progress=Silent())
    with pytest.raises(TrainingError, match="stopped by the test"):
        train(recipe, tmp_path / "two", progress=StopAt(step))
    train(recipe, tmp_path / "two", progress=Silent())
    assert_same_outcome(tmp_path / "one", tmp_path / "two")


def test_evaluating_more_often_changes_no_weight(tmp_path: Path) -> None:
    recipe = toy_recipe(schedule={"epochs": 3})
    train(recipe, tmp_path / "epochs", progress=Silent())
    train(counted(None, 2, ema=None), tmp_path / "updates", progress=Silent())
    train(toy_recipe(schedule={"steps": 9}), tmp_path / "steps", progress=Silent())
    states = [final_state(tmp_path / name)["model"] for name in ("epochs", "updates", "steps")]
    for other in states[1:]:
        assert all(torch.equal(value, other[name]) for name, value in states[0].items())
    assert metric_rows(tmp_path / "epochs")[-1]["val/top1"] == metric_rows(tmp_path / "steps")[-1]["val/top1"]


def test_the_schedule_ends_with_the_updates() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    given = {"steps": 10, "warmup_steps": 4, "warmup_lr": 0.0, "min_lr": 0.0}
    schedule = create_schedule(optimizer, recipe_from_dict({"schedule": given, "optimizer": {"lr": 1.0}}), steps=3)
    rates = []
    for step in range(11):
        schedule.step_update(step)
        rates.append(learning_rate(optimizer))
    assert rates[:4] == [0.0, 0.25, 0.5, 0.75]
    assert rates[5] == pytest.approx(0.5)
    assert rates[10] == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ({"warmup_steps": 3}, "schedule.warmup_steps: requires schedule.steps"),
        ({"steps": 3, "warmup_steps": 3}, "schedule.warmup_steps: must be below steps"),
    ],
)
def test_lengths_that_cannot_be_are_refused(schedule: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        recipe_from_dict({"schedule": schedule})


def test_a_warm_up_longer_than_the_run_is_refused_with_the_data_at_hand(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"schedule\.steps: 3 updates \(1 epochs\) leave none after warm-up"):
        train(toy_recipe(schedule={"steps": 3, "warmup_epochs": 1}), tmp_path, progress=Silent())


def test_a_study_counts_updates(tmp_path: Path) -> None:
    def study(**more: Any) -> StudyResult:
        given = {"grafts": ["cb_s"], "recipe": str(tmp_path / "recipe.yaml"), "seeds": 1, "out": str(tmp_path / "out")}
        return compare(study_from_dict(given | more), costs=False)

    (tmp_path / "recipe.yaml").write_text(recipe_to_yaml(counted()))
    for option in ({"halving": 2}, {"time_budget": "1m"}):
        with pytest.raises(UsageError, match=r"counts epochs, but the recipe counts updates; use --set schedule.steps"):
            study(**option)
    result = study()
    assert (result.steps, result.epochs) == (8, 3)
    assert result.variants[1].runs[0].curve["step"] == [5, 8]
    assert result.variants[1].epochs_to_baseline is None
    page = (tmp_path / "out" / "report.html").read_text()
    assert "after 8 updates" in page
    assert "8 updates" in page
