"""BiXT's recipes against the authors' scripts, and their optimizer against its equations, on a tiny BiXT."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from timm.layers import DropPath
from torch import Tensor, nn

from attngraft.tasks.classification.losses import training_loss
from attngraft.tasks.task import load_task
from attngraft.training.build import build_initial_model, build_model, model_data_config
from attngraft.training.optimizer import create_optimizer, create_schedule
from attngraft.training.recipe import Recipe, load_recipe

TINY = "{img_size: 32, patch_size: 8, stride: 8, embed_dim: 32, depth: 2, num_heads: 2, num_latents: 4}"


def task_config(recipe: Recipe) -> Any:
    """The whole of the task's section, with what it leaves to defaults."""
    section = {**recipe.task, "data": {"source": "digits"}}
    task: Any = load_task(section.pop("name")).from_config(section, seed=0)
    return task.config


# --- what the scripts say -----------------------------------------------------------------------------------------


def test_from_scratch() -> None:
    recipe = load_recipe("bixt-imagenet")
    lamb, schedule, train = recipe.optimizer, recipe.schedule, recipe.train
    assert (recipe.host.name, recipe.host.args) == ("bixt_ti_l64_p16", {})
    assert (lamb.name, recipe.lr, lamb.weight_decay, lamb.betas, lamb.eps) == (
        "lambc",
        2.5e-3,
        0.05,
        (0.9, 0.999),
        1e-8,
    )
    assert lamb.args == {"max_grad_norm": 1.0}
    assert load_recipe("bixt-imagenet", ["train.batch_size=512"]).lr == 1.25e-3
    assert (schedule.name, schedule.epochs, schedule.cooldown_epochs) == ("cosine", 800, 0)
    assert (schedule.warmup, schedule.warmup_lr, schedule.min_lr) == (5, 1e-6, 1e-5)
    assert (train.batch_size, train.clip_grad, train.drop_path, train.ema) == (1024, None, 0.0, None)
    augment, loss = task_config(recipe).augment, task_config(recipe).loss
    assert (augment.crop, augment.scale, augment.interpolation) == ("resized", (0.08, 1.0), "bicubic")
    assert augment.ratio == pytest.approx((3 / 4, 4 / 3))
    assert (augment.auto_augment, augment.color_jitter, augment.color_jitter_prob) == ("3a", 0.3, None)
    assert (augment.mixup, augment.cutmix, augment.mix_prob, augment.mix_switch_prob) == (0.8, 1.0, 1.0, 0.5)
    assert (augment.mix_mode, augment.mix_off_epoch, augment.erasing, augment.repeats) == ("batch", None, 0.0, 1)
    assert (loss.name, loss.smoothing, loss.target_threshold, loss.sum_classes) == ("bce", 0.0, None, False)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("bixt-imagenet", ["800 epochs", "80.10", "81.88", "82.70", "81.00", "81.74", "79.1", "80.8", "81.2"]),
        ("bixt-imagenet-300", ["300 epochs", "79.1", "80.8", "81.2"]),
        ("bixt-imagenet-120", ["120 epochs", "72.48", "71.64", "60.61", "58.26"]),
        ("bixt-small", ["300 epochs", "80.60", "81.20", "81.87"]),
        ("bixt-384", ["30 epochs", "81.85", "82.77", "83.15", "81.0", "81.8", "82.0"]),
    ],
)
def test_the_header_says_what_to_expect(name: str, numbers: list[str]) -> None:
    lines = (files("attngraft.training") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    header = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), lines))
    assert "Expect" in header
    assert [number for number in numbers if number not in header] == []


def test_the_papers_shorter_schedules_and_fine_tuning() -> None:
    whole, longer, shorter = (load_recipe(f"bixt-imagenet{end}") for end in ("", "-300", "-120"))
    assert replace(longer, schedule=whole.schedule, train=whole.train) == whole
    assert (longer.schedule.epochs, longer.train) == (300, replace(whole.train, drop_path=0.05))
    assert replace(shorter, schedule=longer.schedule) == longer
    assert shorter.schedule == replace(whole.schedule, epochs=120)
    small = load_recipe("bixt-small")
    assert (small.host.name, small.train.drop_path) == ("bixt_sm_h6_l64_p16", 0.1)
    assert replace(small, host=longer.host, train=longer.train) == longer
    tuned = load_recipe("bixt-384")
    assert (tuned.host.name, tuned.lr, tuned.train.batch_size, tuned.train.drop_path) == (
        "bixt_ti_l64_p16_ft384",
        2.5e-5,
        512,
        0.05,
    )
    assert tuned.schedule == replace(whole.schedule, epochs=30, warmup_epochs=0)
    assert tuned.task == whole.task


@pytest.mark.parametrize(("name", "size"), [("bixt-imagenet", 224), ("bixt-384", 384)])
def test_evaluation_crops_as_the_authors_do(name: str, size: int) -> None:
    seen = model_data_config(load_recipe(name))
    assert (seen["input_size"], seen["crop_pct"], seen["interpolation"]) == ((3, size, size), 0.875, "bicubic")
    assert math.floor(size / seen["crop_pct"]) == {224: 256, 384: 438}[size]
    assert seen["mean"] == (0.485, 0.456, 0.406)


def test_three_augment_is_one_of_three_and_jitter_always() -> None:
    from timm.data.auto_augment import auto_augment_transform

    policy = auto_augment_transform("3a", {"img_mean": (124, 116, 104)}).policy
    assert [[(op.name, op.prob, op.magnitude) for op in each] for each in policy] == [
        [("Solarize", 1.0, 5)],  # at a threshold of 128
        [("Desaturate", 1.0, 10)],  # to gray
        [("GaussianBlurRand", 1.0, 10)],
    ]


def test_the_loss_is_a_mean_over_classes_of_the_mixed_targets() -> None:
    config = task_config(load_recipe("bixt-imagenet")).loss
    logits, target = torch.randn(4, 5), torch.rand(4, 5).softmax(-1)
    plain = nn.functional.binary_cross_entropy_with_logits(logits, target)
    torch.testing.assert_close(training_loss(config)(logits, target), plain)


# --- the optimizer ------------------------------------------------------------------------------------------------


def tiny(*overrides: str) -> tuple[Recipe, nn.Module]:
    recipe = load_recipe("bixt-imagenet", [f"host.args={TINY}", *overrides])
    model = build_model(recipe, {"num_classes": 3})
    with torch.no_grad():
        for parameter in model.parameters():  # the head and biases start at zero, where a ratio says nothing
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    return recipe, model.double()


def lamb_step(parameter: Tensor, gradient: Tensor, *, clip: float, lr: float, decayed: bool) -> tuple[Tensor, float]:
    """The first step of LAMB as the scripts have it, and its trust ratio."""
    clipped = gradient / clip
    update = clipped / (clipped.abs() + 1e-8)  # both moments are the gradient's, their bias corrected
    ratio = 1.0
    if decayed:
        update = update + 0.05 * parameter
        ratio = min(float(parameter.norm() / update.norm()), 1.0)
    return parameter - lr * ratio * update, ratio


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_what_is_decayed_has_a_trust_ratio_and_nothing_else(size: float) -> None:
    recipe, model = tiny()
    optimizer = create_optimizer(model, recipe)
    (model(torch.randn(2, 3, 32, 32, dtype=torch.float64)).square().sum() * size).backward()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}  # type: ignore[union-attr]
    whole = float(torch.cat([gradient.flatten() for gradient in gradients.values()]).norm())
    assert (whole > 1) == (size > 1)
    optimizer.step()
    ratios = {}
    for name, parameter in model.named_parameters():
        decayed = before[name].ndim > 1 and not name.endswith(".bias")
        clip = max(whole, 1.0)
        wanted, ratios[name] = lamb_step(before[name], gradients[name], clip=clip, lr=recipe.lr, decayed=decayed)
        torch.testing.assert_close(parameter.detach(), wanted, rtol=1e-6, atol=1e-9, msg=name)
    assert ratios["latents"] < 1, "latents have three axes, and are adapted like matrices"
    assert max(ratios.values()) == 1
    assert {name for name, ratio in ratios.items() if ratio < 1} <= {n for n, p in before.items() if p.ndim > 1}


def test_groups_are_of_matrices_and_the_rest() -> None:
    recipe, model = tiny()
    names = {parameter: name for name, parameter in model.named_parameters()}
    by_decay = {
        group["weight_decay"]: {names[each] for each in group["params"]}
        for group in create_optimizer(model, recipe).param_groups
    }
    assert set(by_decay) == {0.0, 0.05}
    assert {
        "latents",
        "patch_embed.proj.weight",
        "head.weight",
        "fourier_pos_encode.token_projection.weight",
    } <= by_decay[0.05]
    assert all(name.endswith(".bias") or "norm" in name for name in by_decay[0.0])


def test_the_rate_rises_and_falls_inside_the_epochs() -> None:
    recipe, model = tiny("schedule.epochs=10")
    optimizer = create_optimizer(model, recipe)
    schedule = create_schedule(optimizer, recipe, steps=4)
    rates = []
    for update in range(41):
        schedule.step_update(update)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[0] == 1e-6
    assert rates[20] == pytest.approx(
        1e-5 + (2.5e-3 - 1e-5) * (1 + math.cos(math.pi / 2)) / 2
    )  # the cosine's own place
    assert max(rates) == rates[19] < 2.5e-3  # where the warm-up ends the cosine has begun to fall
    assert rates[40] == pytest.approx(1e-5)


def test_fine_tuning_starts_from_a_smaller_grid(tmp_path: Path) -> None:
    _, small = tiny()
    save_file({name: value.float() for name, value in small.state_dict().items()}, tmp_path / "small.safetensors")
    args = TINY.replace("img_size: 32", "img_size: 48")
    recipe = load_recipe("bixt-384", [f"host.args={args}", f"host.weights={tmp_path / 'small.safetensors'}"])
    model, start = build_initial_model(recipe, {"num_classes": 3})
    assert start.whole
    torch.testing.assert_close(model.get_parameter("latents"), small.get_parameter("latents").float())
    assert model(torch.randn(1, 3, 48, 48)).shape == (1, 3)
    rates = [module.drop_prob or 0.0 for module in model.modules() if isinstance(module, DropPath)]
    assert max(rates) == pytest.approx(0.05)
