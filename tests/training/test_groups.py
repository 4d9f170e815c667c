"""Which rate and decay each parameter has: spelled out for a ViT, a Swin and a LeViT, parameter by parameter."""

from __future__ import annotations

import re
from typing import Any

import pytest
import timm
import torch
from torch import nn

from attngraft.training.build import build_model
from attngraft.training.optimizer import create_optimizer, create_schedule, learning_rate, parameter_groups
from attngraft.training.recipe import Recipe, recipe_from_dict

SWIN = {"name": "swin_tiny_patch4_window7_224", "args": {"img_size": 32, "patch_size": 2, "window_size": 4}}
SWIN["args"] |= {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4]}  # type: ignore[operator]
VIT = {"name": "vit_tiny_patch16_224", "args": {"img_size": 16, "patch_size": 8, "embed_dim": 16, "num_heads": 2}}
VIT["args"] |= {"depth": 3}  # type: ignore[operator]
LEVIT = {"name": "levit_128s", "args": {"img_size": 32, "embed_dim": [16, 24], "key_dim": 4, "depth": [2, 2]}}
LEVIT["args"] |= {"num_heads": [2, 3]}  # type: ignore[operator]
HOSTS: dict[str, dict[str, Any]] = {"vit": VIT, "swin": SWIN, "levit": LEVIT}


def recipe_of(host: str, graft: str | None, **optimizer: Any) -> Recipe:
    plain = {"host": HOSTS[host], "graft": graft, "optimizer": {"lr": 1e-2, "weight_decay": 0.1, **optimizer}}
    return recipe_from_dict(plain | {"schedule": {"epochs": 4, "warmup_epochs": 0}})


def groups_by_name(model: nn.Module, recipe: Recipe) -> dict[str, tuple[float, float]]:
    """Name -> (factor on the rate, decay)."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    found: dict[str, tuple[float, float]] = {}
    for group in parameter_groups(model, recipe.optimizer):
        for parameter in group["params"]:
            assert names[parameter] not in found
            found[names[parameter]] = (group["lr_scale"], group["weight_decay"])
    return found


def vit_depth(name: str) -> int:
    """Layers between this parameter and the head."""
    if block := re.match(r"blocks\.(\d+)\.", name):
        return 3 - int(block[1])
    return {"norm": 1, "head": 0}.get(name.partition(".")[0], 4)


def swin_depth(name: str) -> int:
    if name.startswith("head."):
        return 0
    if name.startswith("norm."):
        return 1
    if name.startswith("layers.1.downsample."):
        return 2  # with the stage's first block
    if block := re.match(r"layers\.(\d+)\.blocks\.(\d+)\.", name):
        return [[4, 3], [2, 1]][int(block[1])][int(block[2])]
    assert name.startswith("patch_embed.")
    return 5


def levit_depth(name: str) -> int:
    if name.startswith(("head.", "head_dist.")):
        return 0
    if name.startswith("stages.1.downsample."):
        return 2  # with the stage's first block
    if block := re.match(r"stages\.(\d+)\.blocks\.(\d+)\.", name):
        return [[4, 3], [2, 1]][int(block[1])][int(block[2])]
    assert name.startswith("stem.")
    return 5


@pytest.fixture(autouse=True)
def timm_knows_its_layers(request: pytest.FixtureRequest) -> None:
    """Older releases of timm look for a ViT's names in a LeViT, and find one layer."""
    if "levit" in request.node.name and "stem" not in timm.create_model("levit_128s").group_matcher()["stem"]:
        pytest.skip(f"timm {timm.__version__} does not group LeViT's layers")


DEPTHS = {"vit": vit_depth, "swin": swin_depth, "levit": levit_depth}


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("graft", [None, "cb_s(at=both)@last:1 + horizontal + vertical@first:2 + se(reduction=2)@all"])
def test_every_parameter_of_host_and_grafts(host: str, graft: str | None) -> None:
    recipe = recipe_of(host, graft, layer_decay=0.5, graft_lr_scale=3.0, graft_weight_decay=0.7)
    model = build_model(recipe, {"num_classes": 3})
    found = groups_by_name(model, recipe)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert found.keys() == parameters.keys()
    bare = ("pos_embed", "cls_token", "relative_position_bias_table", "attention_biases")
    for name, parameter in parameters.items():
        grafted = ".grafts." in name
        scale = 0.5 ** DEPTHS[host](name) * (3.0 if grafted else 1.0)
        decay = 0.0 if parameter.ndim == 1 or name.endswith(bare) else 0.7 if grafted else 0.1
        assert found[name] == (pytest.approx(scale), decay), name
    if graft is not None:
        assert {0.0, 0.7} == {decay for name, (_, decay) in found.items() if ".grafts." in name}
        assert len({scale for name, (scale, _) in found.items() if ".grafts." in name}) > 1


@pytest.mark.parametrize("host", HOSTS)
def test_a_graft_changes_no_rate_of_the_host(host: str) -> None:
    alone, grafted = (recipe_of(host, graft, layer_decay=0.75, graft_lr_scale=9) for graft in (None, "cb_s + vertical"))
    plain = groups_by_name(build_model(alone, {"num_classes": 3}), alone)
    with_grafts = groups_by_name(build_model(grafted, {"num_classes": 3}), grafted)
    assert plain == {name: value for name, value in with_grafts.items() if ".grafts." not in name}


def test_the_rate_is_known_where_that_of_the_first_layers_is_rounded_to_zero() -> None:
    recipe = recipe_of("vit", None, layer_decay=1e-300)
    optimizer = create_optimizer(build_model(recipe, {"num_classes": 3}), recipe)
    create_schedule(optimizer, recipe, steps=5).step_update(0)
    assert learning_rate(optimizer) == pytest.approx(1e-2)


@pytest.mark.parametrize("host", HOSTS)
def test_rates_through_the_schedule(host: str) -> None:
    recipe = recipe_of(host, "cb_s", layer_decay=0.5, graft_lr_scale=10.0)
    model = build_model(recipe, {"num_classes": 3})
    optimizer = create_optimizer(model, recipe)
    schedule = create_schedule(optimizer, recipe, steps=5)
    names = {parameter: name for name, parameter in model.named_parameters()}
    for step, expected in ((0, 1e-2), (10, 1e-5 + (1e-2 - 1e-5) / 2)):
        schedule.step_update(step)
        assert learning_rate(optimizer) == pytest.approx(expected)
        for group in optimizer.param_groups:
            for name in (names[parameter] for parameter in group["params"]):
                factor = 0.5 ** DEPTHS[host](name) * (10 if ".grafts." in name else 1)
                assert group["lr"] == pytest.approx(expected * factor), name


def test_without_options_all_have_the_one_rate_and_grafts_the_hosts_decay() -> None:
    recipe = recipe_of("vit", "vertical")
    model = build_model(recipe, {"num_classes": 3})
    found = groups_by_name(model, recipe)
    assert {scale for scale, _ in found.values()} == {1.0}
    assert {decay for name, (_, decay) in found.items() if ".grafts." in name} == {0.0, 0.1}


def test_frozen_parameters_are_in_no_group() -> None:
    recipe = recipe_of("vit", "cb_s")
    model = build_model(recipe, {"num_classes": 3})
    model.get_parameter("blocks.0.attn.qkv.weight").requires_grad_(False)
    assert "blocks.0.attn.qkv.weight" not in groups_by_name(model, recipe)
    assert "blocks.0.attn.qkv.bias" in groups_by_name(model, recipe)


def test_a_model_that_says_nothing_of_its_layers_is_grouped_by_the_dozen() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(13)))
    model.pretrained_cfg = {"classifier": "12"}
    config = recipe_of("vit", None, layer_decay=0.5).optimizer
    sizes = {group["lr_scale"]: 0 for group in parameter_groups(model, config)}
    for group in parameter_groups(model, config):
        sizes[group["lr_scale"]] += len(group["params"])
    assert sizes == {0.25: 12, 0.5: 12, 1.0: 2}
