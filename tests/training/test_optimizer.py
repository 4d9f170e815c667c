from __future__ import annotations

from typing import Any

import pytest
import torch
from timm.optim import list_optimizers
from torch import nn

from attngraft.errors import ConfigError
from attngraft.training.build import build_model
from attngraft.training.optimizer import create_ema, create_optimizer, create_schedule
from tests.training.toys import toy_recipe


def decay_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[p]: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}


def test_parameters_with_one_axis_are_not_decayed_grafts_included() -> None:
    recipe = toy_recipe(graft="cb_s + horizontal", optimizer={"weight_decay": 0.3})
    model = build_model(recipe, {"num_classes": 3})
    decay = decay_of(model, create_optimizer(model, recipe))
    assert set(decay) == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    grafts = {name: value for name, value in decay.items() if ".grafts." in name}
    assert grafts
    for name, parameter in model.named_parameters():
        exempt = parameter.ndim <= 1 or name in ("pos_embed", "cls_token")
        assert decay[name] == (0 if exempt else 0.3), name


def test_layer_decay_puts_a_graft_in_the_layer_of_its_block() -> None:
    recipe = toy_recipe(graft="cb_s", optimizer={"layer_decay": 0.5})
    model = build_model(recipe, {"num_classes": 3})
    optimizer = create_optimizer(model, recipe)
    names = {parameter: name for name, parameter in model.named_parameters()}
    scale = {names[p]: group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}
    assert scale["head.weight"] == 1
    for block in (0, 1):
        assert scale[f"blocks.{block}.mlp.grafts.cb_s.scale"] == scale[f"blocks.{block}.mlp.fc1.weight"]
    assert scale["blocks.0.mlp.fc1.weight"] == 0.5 * scale["blocks.1.mlp.fc1.weight"]
    schedule = create_schedule(optimizer, recipe, steps=10)
    schedule.step_update(8)
    lrs = {names[p]: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert lrs["blocks.0.mlp.fc1.weight"] == pytest.approx(lrs["head.weight"] * scale["blocks.0.mlp.fc1.weight"])


def test_rows_that_a_graft_leaves_unused_do_not_move() -> None:
    recipe = toy_recipe(graft="uniform_heads", optimizer={"weight_decay": 0.5, "lr": 0.1})
    model = build_model(recipe, {"num_classes": 3})
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = create_optimizer(model, recipe)
    model(torch.randn(2, 3, 16, 16)).square().sum().backward()
    optimizer.step()
    weight = model.get_parameter("blocks.0.attn.qkv.weight").detach()
    moved = (weight != before["blocks.0.attn.qkv.weight"]).any(dim=1)
    assert 0 < int((~moved).sum()) < len(moved)


@pytest.mark.parametrize("name", ["adamw", "lamb", "sgd", "lion", "lookahead_adamw"])
def test_optimizers_of_timm_learn(name: str) -> None:
    recipe = toy_recipe(optimizer={"name": name, "lr": 1e-2})
    model = build_model(recipe, {"num_classes": 3})
    optimizer = create_optimizer(model, recipe)
    images, labels = torch.randn(6, 3, 16, 16), torch.arange(6) % 3
    losses = []
    model.eval()
    for _ in range(8):
        loss = nn.functional.cross_entropy(model(images), labels)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert min(losses[1:]) < losses[0]


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ({"name": "adamww"}, r"no optimizer 'adamww' \(did you mean adamw\?\)"),
        ({"args": {"wings": 2}}, "optimizer adamw with .*wings"),
        ({"betas": [0.9, 1.5]}, "optimizer adamw with .*beta"),
        ({"betas": []}, r"optimizer\.betas: must be 2 numbers for adamw; got \(\)"),
        ({"betas": [0.9, 0.999, 0.5]}, r"optimizer\.betas: must be 2 numbers for adamw; got \(0\.9"),
        ({"name": "adan", "args": {"betas": [0.9, 0.99]}}, r"optimizer\.betas: must be 3 numbers for adan"),
        ({"name": "lookahead_adahessian"}, "lookahead_adahessian needs second derivatives"),
    ],
)
def test_wrong_optimizers_are_named(optimizer: dict[str, Any], message: str) -> None:
    recipe = toy_recipe(optimizer=optimizer)
    with pytest.raises(ConfigError, match=message):
        create_optimizer(build_model(recipe, {"num_classes": 3}), recipe)
    assert "adamw" in list_optimizers()


def rates(epochs: int = 10, steps: int = 4, **schedule: Any) -> list[float]:
    recipe = toy_recipe(optimizer={"lr": 1.0}, schedule={"epochs": epochs, "warmup_epochs": 0, "min_lr": 0, **schedule})
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=recipe.lr)
    made = create_schedule(optimizer, recipe, steps=steps)
    found = []
    for update in range(epochs * steps):
        made.step_update(update)
        found.append(optimizer.param_groups[0]["lr"])
    return found


def test_schedules_set_the_rate_of_every_update() -> None:
    cosine = rates(name="cosine")
    assert cosine[0] == 1
    assert cosine[20] == pytest.approx(0.5)
    assert cosine == sorted(cosine, reverse=True)
    warm = rates(name="cosine", warmup_epochs=2.5, warmup_lr=0.1)
    assert warm[0] == pytest.approx(0.1)
    assert warm[:10] == sorted(warm[:10])
    assert set(rates(name="constant")) == {1.0}
    assert rates(name="poly")[20] == pytest.approx(0.5)
    assert sorted(set(rates(name="step", decay_epochs=4)), reverse=True) == pytest.approx([1, 0.1, 0.01])
    steps = rates(name="multistep", decay_milestones=[2, 5], decay_rate=0.5)
    assert (steps[6], steps[8], steps[20]) == (1, 0.5, 0.25)
    linear = rates(name="linear", warmup_epochs=2.5, warmup_lr=0)
    assert linear[:11] == pytest.approx([update / 10 for update in range(11)])
    assert linear[10:] == pytest.approx([1 - update / 30 for update in range(30)])
    root = rates(name="inverse_sqrt", warmup_steps=10)
    assert root[:10] == pytest.approx([(update + 1) / 10 for update in range(10)])
    assert root[39] == pytest.approx(0.5)
    assert max(rates(name="inverse_sqrt", warmup_steps=4000)) == pytest.approx(0.01)
    cool = rates(name="cosine", cooldown_epochs=3, min_lr=0.01)
    assert cool[-12:] == pytest.approx([0.01] * 12)


def test_the_moving_average_is_asked_for() -> None:
    model = nn.Linear(2, 2)
    assert create_ema(model, toy_recipe()) is None
    ema = create_ema(model, toy_recipe(train={"ema": 0.75}))
    assert ema is not None
    with torch.no_grad():
        model.weight.add_(1)
    before = ema.module.weight.clone()
    ema.update(model)
    torch.testing.assert_close(ema.module.weight, before + 0.25)


def test_settings_without_effect_are_named(caplog: pytest.LogCaptureFixture) -> None:
    optimizer = {"name": "adamw", "momentum": 0.5, "betas": [0.8, 0.9]}
    recipe = toy_recipe(optimizer=optimizer, schedule={"name": "poly", "decay_epochs": 3, "decay_rate": 2})
    create_optimizer(nn.Linear(2, 2), recipe)
    assert caplog.messages == [
        "optimizer.momentum=0.5 has no effect: adamw does not have it",
        "schedule.decay_epochs has no effect: schedule.name is poly, not step",
    ]
