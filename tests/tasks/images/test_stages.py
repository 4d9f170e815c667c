"""A recipe's stages with data of their own keep the run's validation split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attngraft.cli import main
from attngraft.errors import ConfigError
from attngraft.study import compare, study_from_dict
from attngraft.training.recipe import Recipe, recipe_from_dict, recipe_to_dict, recipe_to_yaml
from attngraft.training.run_folder import RunFolder
from attngraft.training.setup import create_accelerator, prepare_run
from attngraft.training.stages import stage_recipe
from tests.tasks.images.datasets import make_folder
from tests.tasks.images.test_training import recipe


def staged(data: dict[str, Any], own: dict[str, Any]) -> Recipe:
    stages = [{"name": "first", "epochs": 1}, {"name": "other", "task": {"data": own}}]
    return recipe_from_dict({**recipe_to_dict(recipe(data)), "stages": stages})


@pytest.mark.parametrize(
    ("data", "own", "field"),
    [
        ({}, {"split_seed": 1}, "split_seed"),
        ({"val_fraction": 0.2}, {"val_fraction": 0.1}, "val_fraction"),
        ({"val_fraction": 0.2}, {"source": "./flowers/", "val_fraction": None, "val_split": "val"}, "val_split"),
        ({"split_file": "one.csv"}, {"split_file": None}, "split_file"),
        ({}, {"split_column": "fold"}, "split_column"),
    ],
)
def test_another_split_of_the_runs_data_is_refused(data: dict[str, Any], own: dict[str, Any], field: str) -> None:
    given = staged({"source": "flowers", **data}, own)
    with pytest.raises(
        ConfigError, match=f"^stages.other.task.data.{field}: splits .* remove it, or use --set task.data.{field}"
    ):
        stage_recipe(given, given.stages[1])


@pytest.mark.parametrize("own", [{"train_split": "extra", "split_seed": 0}, {"source": "leaves", "split_seed": 1}])
def test_other_data_and_the_runs_split_are_accepted(own: dict[str, Any]) -> None:
    given = staged({"source": "flowers", "split_seed": 0}, own)
    assert stage_recipe(given, given.stages[1]).task["data"] == {"source": "flowers", "split_seed": 0, **own}


@pytest.mark.parametrize("command", ["train", "compare"])
def test_the_commands_exit_with_2_and_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    path, out = tmp_path / "recipe.yaml", tmp_path / "out"
    path.write_text(recipe_to_yaml(staged({"source": "digits"}, {"split_seed": 1})))
    with pytest.raises(SystemExit) as stop:
        main([command, "--recipe", str(path), "--graft", "cb_s", "--out", str(out)])
    assert stop.value.code == 2
    assert "stages.other.task.data.split_seed: splits the run's data differently" in capsys.readouterr().err
    assert not out.exists()


def test_a_stage_of_a_variant_is_refused_before_training(tmp_path: Path) -> None:
    path, out = tmp_path / "recipe.yaml", tmp_path / "out"
    path.write_text(recipe_to_yaml(recipe({"source": "digits"})))
    stages = [{"name": "a", "task": {"data": {"val_fraction": 0.5}}}]
    study = {"recipe": str(path), "grafts": [{"graft": "cb_s", "set": {"stages": stages}}], "out": str(out)}
    with pytest.raises(ConfigError, match="stages.a.task.data.val_fraction"):
        compare(study_from_dict(study))
    assert not out.exists()


def test_a_stage_with_other_labels_keeps_the_random_split(tmp_path: Path) -> None:
    """A split by the classes of the other column would be another one."""
    make_folder(tmp_path / "images", {".": 40})
    rows = [f"images/{i}.png,{'ab'[i % 2]},{'ab'[i % 7 // 3 % 2]}" for i in range(40)]
    (tmp_path / "x.csv").write_text("\n".join(["file,noisy,clean", *rows]) + "\n")
    data = {"source": str(tmp_path / "x.csv"), "label_column": "noisy"}

    def names(given: Recipe, number: int) -> tuple[set[str], set[str]]:
        run = prepare_run(given, RunFolder(tmp_path / f"run{number}"), create_accelerator(given))
        split, val = run.stages[-1].order.split, run.data.val
        return {split.name(i) for i in range(len(split))}, {val.name(i) for i in range(len(val))}

    train, val = names(staged(data, {"label_column": "clean"}), 0)
    assert not train & val
    assert len(train | val) == 40
    assert names(recipe({**data, "label_column": "clean"}), 1)[1] != val
