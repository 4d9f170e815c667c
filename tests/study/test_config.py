"""Studies from YAML and from plain values: what is read, what it becomes, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attngraft.errors import ConfigError, UsageError
from attngraft.study.config import read_study_file, study_from_dict
from attngraft.training.recipe import load_recipe, recipe_to_dict
from attngraft.yaml_config import dump_yaml

from .fakes import study


def test_a_study_file_in_full(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        """
title: Broadcasting
host: {name: vit_tiny_patch16_224, args: {img_size: 32, depth: 4}}
grafts:
  - cb_s
  - {name: both, spec: horizontal + vertical}
data: {source: digits, val_fraction: 0.3}
set: [optimizer.lr=5e-4]
seeds: [5, 7]
epochs: 4
time_budget: 1h30m
out: somewhere
"""
    )
    config = study_from_dict(read_study_file(file), source=str(file))
    assert [(v.name, v.spec) for v in config.variants] == [
        ("baseline", "none"),
        ("cb_s", "cb_s"),
        ("both", "horizontal + vertical"),
    ]
    assert (config.seeds, config.epochs, config.time_budget, config.out) == ((5, 7), 4, 5400, Path("somewhere"))
    recipe = config.recipe_of(config.variants[2], 7)
    assert (recipe.graft, recipe.seed, recipe.schedule.epochs) == ("horizontal + vertical", 7, 4)
    assert recipe.optimizer.lr == 5e-4
    assert recipe.task == {"name": "classification", "data": {"source": "digits", "val_fraction": 0.3}}
    assert dict(recipe.host.args) == {"img_size": 32, "depth": 4}


def test_a_warmup_that_does_not_fit_is_shortened(tmp_path: Path) -> None:
    config = study(tmp_path, recipe="swin-imagenet", epochs=3, host="swin_tiny_patch4_window7_224")
    assert config.recipe_of(config.variants[0], 0).schedule.warmup == pytest.approx(0.3)
    assert "warm-up of 20 epochs does not fit into 3 epochs" in str(config.schedule_note())
    assert study(tmp_path, recipe="swin-imagenet", epochs=30).schedule_note() is None
    chosen = study(tmp_path, recipe="swin-imagenet", epochs=3, set=["schedule.warmup_epochs=5"])
    with pytest.raises(ConfigError, match="must be less than the 3 epochs"):
        chosen.recipe_of(chosen.variants[0], 0)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    config = study(
        tmp_path, time_budget="10m", title="A title", set=["train.batch_size=64"], seeds=[3], fitted_epochs=2
    )
    file = tmp_path / "study.yaml"
    file.write_text(dump_yaml(config.to_dict()))
    assert study_from_dict(read_study_file(file)) == config


def test_variants_of_a_seed_differ_in_the_graft_alone(tmp_path: Path) -> None:
    config = study(tmp_path)
    baseline, variant = (recipe_to_dict(config.recipe_of(v, 1)) for v in config.variants[:2])
    assert baseline.pop("graft") is None
    assert variant.pop("graft") == "cb_s"
    assert baseline == variant


def test_without_a_name_host_arguments_add_to_the_recipes_host(tmp_path: Path) -> None:
    config = study(tmp_path, host={"args": {"depth": 3}}, set=["host.args.img_size=32"])
    recipe = config.recipe_of(config.baseline, 0)
    assert recipe.host.name == "vit_tiny_patch16_224"
    assert dict(recipe.host.args) == {"depth": 3, "img_size": 32}


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_small_patch16_224"])
def test_arguments_of_the_recipe_are_kept_for_its_host_only(tmp_path: Path, name: str) -> None:
    config = study(tmp_path, host={"name": name, "args": {"depth": 3}}, recipe="cpu-small")
    own = load_recipe("cpu-small").host.args if name == "vit_tiny_patch16_224" else {}
    assert own or name == "vit_small_patch16_224"
    assert dict(config.recipe_of(config.baseline, 0).host.args) == {**own, "depth": 3}


def test_a_host_as_text(tmp_path: Path) -> None:
    config = study(tmp_path, host="vit_small_patch16_224")
    assert config.recipe_of(config.baseline, 0).host.name == "vit_small_patch16_224"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graft": ["cb"]}, "did you mean grafts"),
        ({"host": {"nam": "x"}}, "nam"),
        ({"epochs": -1}, "must not be negative"),
        ({"epochs": "many"}, "epochs"),
        ({"data": 3}, "data"),
        ({"set": ["seed=3"]}, "--seeds"),
        ({"set": ["graft=cb"]}, "--graft"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": 10**12}, "at most 10,000"),
        ({"seeds": "1" * 5000}, "expected a number of seeds"),
        ({"seeds": "\u00b2"}, "expected a number of seeds"),
        ({"halving": "3,\u00b2"}, "expected a factor"),
        ({"time_budget": "9" * 400 + "h"}, "with its unit"),
        ({"time_budget": "10"}, "with its unit"),
        ({"grafts": ["cb_z"]}, "unknown graft 'cb_z'"),
    ],
)
def test_refusals_name_the_field(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, UsageError), match=message):
        study(tmp_path, **changes)


def test_results_need_a_place() -> None:
    with pytest.raises(UsageError, match="--out"):
        study_from_dict({"grafts": ["cb_s"]})


def test_a_wrong_override_is_refused_where_recipes_are_made(tmp_path: Path) -> None:
    config = study(tmp_path, set=["optimizer.lrr=1"])
    with pytest.raises(ConfigError, match="lrr"):
        config.recipe_of(config.baseline, 0)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_study_file(tmp_path / "nothing.yaml")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ({}, (True, None)),
        ({"pretrained": False}, (False, None)),
        ({"weights": "mine.pth"}, (False, "mine.pth")),
        ({"weights": "mine.pth", "pretrained": False}, (False, "mine.pth")),
        ({"name": "swin_tiny_patch4_window7_224"}, (True, None)),
        ({"name": "swin_tiny_patch4_window7_224", "weights": "mine.pth"}, (False, "mine.pth")),
    ],
)
def test_what_a_study_says_of_weights_stands_over_its_recipe(
    tmp_path: Path, host: dict[str, Any], expected: tuple[bool, str | None]
) -> None:
    config = study(tmp_path, host=host, recipe="finetune")
    for variant in config.variants:
        made = config.recipe_of(variant, 0).host
        assert (made.pretrained, made.weights) == expected
    again = study_from_dict(config.to_dict())
    assert again.recipe_of(again.variants[0], 0) == config.recipe_of(config.variants[0], 0)


def test_weights_of_the_recipes_host_fit_no_other(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("host: {weights: mine.pth, args: {depth: 3}}")
    kept = study(tmp_path, host={"args": {"img_size": 32}}, recipe=str(tmp_path / "mine.yaml"))
    assert kept.recipe_of(kept.variants[0], 0).host.weights == "mine.pth"
    other = study(tmp_path, host={"name": "deit_tiny_patch16_224"}, recipe=str(tmp_path / "mine.yaml"))
    assert other.recipe_of(other.variants[0], 0).host.weights is None


def test_both_kinds_of_weights_are_refused(tmp_path: Path) -> None:
    config = study(tmp_path, host={"weights": "mine.pth", "pretrained": True})
    with pytest.raises(ConfigError, match=r"host\.weights: cannot be combined with pretrained: true"):
        config.recipe_of(config.variants[0], 0)
