"""ELSA's recipes against the authors' scripts and the papers, as the facts have them."""

from __future__ import annotations

import re

import pytest

from attngraft.errors import ConfigError
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.task import load_task
from attngraft.training.build import model_data_config
from attngraft.training.recipe import load_recipe
from tests.training.test_bixt_recipes import task_config


def test_elsa_swin() -> None:
    recipe = load_recipe("elsa-swin-imagenet")
    schedule, train, augment = recipe.schedule, recipe.train, task_config(recipe).augment
    assert (recipe.host.name, recipe.lr, recipe.optimizer.weight_decay) == ("elsa_swin_tiny", 1e-3, 0.05)
    assert (schedule.epochs, schedule.cooldown_epochs, schedule.warmup) == (310, 10, 20)
    assert (schedule.warmup_lr, schedule.min_lr) == (1e-6, 1e-5)
    assert (train.batch_size, train.clip_grad, train.drop_path, train.ema) == (1024, 5.0, 0.1, None)
    assert (augment.mixup, augment.cutmix, augment.auto_augment) == (0.8, 1.0, "rand-m9-mstd0.5-inc1")
    base = load_recipe("elsa-swin-base-imagenet")
    assert (base.host.name, base.train.drop_path, base.train.ema) == ("elsa_swin_base", 0.5, 0.99992)


def test_elsa_volo() -> None:
    recipe = load_recipe("elsa-volo-imagenet")
    task = task_config(recipe)
    assert (recipe.host.name, recipe.task["name"], recipe.lr) == ("elsa_volo_d1", "token_labeling", 1.6e-3)
    assert (recipe.schedule.epochs, recipe.train.drop_path, task.augment.mixes) == (310, 0.1, False)
    assert (task.augment.auto_augment, task.augment.erasing, task.loss.smoothing) == ("rand-m9-mstd0.5-inc1", 0.25, 0.1)
    labels = task.token_labels
    assert (labels.dense_weight, labels.class_weight, labels.with_ground_truth) == (0.5, 1.0, False)


def test_elsa_volo_on_larger_images() -> None:
    recipe = load_recipe("elsa-volo-384")
    schedule = recipe.schedule
    assert (recipe.host.name, recipe.lr, recipe.optimizer.weight_decay) == ("elsa_volo_d1_384", 8e-6, 1e-8)
    assert (schedule.epochs, schedule.cooldown_epochs, schedule.warmup, schedule.min_lr) == (30, 0, 5, 4e-6)
    assert task_config(recipe).token_labels.with_ground_truth


@pytest.mark.parametrize(
    ("name", "size", "crop"),
    [
        ("elsa_volo_d1_384", 384, 1.0),
        ("elsa_volo_d3_448", 448, 1.0),
        ("elsa_volo_d5_448", 448, 1.15),
        ("elsa_volo_d5_512", 512, 1.15),
    ],
)
def test_the_host_says_how_large_the_images_are(name: str, size: int, crop: float) -> None:
    """Fine-tuning of the other sizes is the same recipe with another host."""
    recipe = load_recipe("elsa-volo-384", [f"host.name={name}"])
    host = HostInput.from_model(model_data_config(recipe))
    assert (host.height, host.width, host.crop_pct) == (size, size, crop)


def test_fine_tuning_needs_maps() -> None:
    recipe = load_recipe("elsa-volo-384", ["task.token_labels.maps=null", "task.data.source=digits"])
    section = {name: value for name, value in recipe.task.items() if name != "name"}
    with pytest.raises(ConfigError, match=re.escape("task.token_labels.with_ground_truth: requires label maps")):
        load_task(recipe.task["name"]).from_config(section, seed=0)
