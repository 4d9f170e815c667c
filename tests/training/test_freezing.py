"""What is trained and what stays: values, gradients, optimizer states, running statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

from attngraft.errors import ConfigError
from attngraft.hosts import HostedModel, ModelParts, model_parts
from attngraft.tasks.task import TASKS
from attngraft.training.build import build_model
from attngraft.training.freezing import freeze, train_mode, trained_names
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Parameters
from tests.training.toys import Toy, final_state, toy_recipe

HEAD = {"head.weight", "head.bias"}


def is_grafts(name: str) -> bool:
    return ".grafts." in name


@pytest.mark.parametrize(
    ("parameters", "graft"),
    [("grafts", "cb_s + vertical"), ("grafts+head", "cb_s"), ("grafts+head", None), ("head", "cb_s"), ("head", None)],
)
def test_only_the_chosen_ones_move_and_have_gradients_and_states(
    tmp_path: Path, parameters: Parameters, graft: str | None
) -> None:
    recipe = toy_recipe(graft=graft, train={"parameters": parameters, "ema": 0.5}, optimizer={"weight_decay": 0.5})
    model = build_model(recipe, {"num_classes": 3})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    train(recipe, tmp_path, progress=Silent())
    state = final_state(tmp_path)
    wanted = {
        name
        for name, _ in model.named_parameters()
        if (is_grafts(name) and "grafts" in parameters) or (name in HEAD and "head" in parameters)
    }
    assert wanted
    assert {name for name, p in model.named_parameters() if p.requires_grad} == wanted
    assert {name for name in before if not torch.equal(before[name], state["model"][name])} == wanted
    assert set(state["optimizer"]["state"]) == wanted
    assert all(torch.equal(before[name], state["ema"][name]) for name in before.keys() - wanted)


def test_frozen_parameters_get_no_gradient() -> None:
    recipe = toy_recipe(graft="cb_s", train={"parameters": "grafts+head"})
    model = build_model(recipe, {"num_classes": 3})
    model(torch.randn(2, 3, 16, 16)).sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == (is_grafts(name) or name in HEAD), name


def test_all_leaves_alone_what_a_graft_left_without_use() -> None:
    model = build_model(toy_recipe(graft="uniform_heads(count=2)@all"), {"num_classes": 3})
    plain = build_model(toy_recipe(), {"num_classes": 3})
    freeze(plain, "all")
    assert all(parameter.requires_grad for parameter in plain.parameters())
    unused = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert trained_names(model, "all").isdisjoint(unused)


class WithBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.bare, self.head = nn.BatchNorm1d(4, affine=False), nn.Linear(4, 2)
        self.pretrained_cfg = {"classifier": "head"}

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.bare(self.norm(self.conv(images)).mean((2, 3))))
        return out


def test_frozen_batch_norms_normalize_as_in_evaluation() -> None:
    model = WithBatchNorm()
    freeze(model, "head")
    train_mode(model)
    assert model.training
    assert not (model.norm.training or model.bare.training)
    images = torch.randn(4, 3, 8, 8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    together = model(images)
    torch.testing.assert_close(torch.cat([model(image[None]) for image in images]), together)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_trained_batch_norms_are_left_as_they_are() -> None:
    model = WithBatchNorm()
    train_mode(model)
    assert model.norm.training and model.bare.training
    model(torch.randn(4, 3, 8, 8))
    assert model.norm.num_batches_tracked == 1


def test_a_real_host_with_batch_norms_stays_the_same_function() -> None:
    torch.manual_seed(0)
    model = timm.create_model("levit_128s", num_classes=3)
    freeze(model, "head")
    train_mode(model)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d)]
    assert norms
    assert not any(module.training for module in norms)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained
    assert trained == {name for name, _ in model.named_parameters() if model_parts(model).of(name) == "head"}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"graft": "cb", "train": {"parameters": "grafts"}}, "nothing to train: the graft adds no parameters; use"),
        (
            {"host": {"args": {"num_classes": 0}}, "train": {"parameters": "head"}},
            "nothing to train: the model has no head",
        ),
    ],
)
def test_nothing_to_train_is_said(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model(toy_recipe(**sections), {})


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"train": {"parameters": "grafts"}},
            r"train\.parameters: is grafts, but the recipe has no graft.*use grafts\+head",
        ),
        (
            {"train": {"first": {"parameters": "grafts"}}},
            r"train\.first\.parameters: is grafts, but the recipe has no graft",
        ),
        (
            {"train": {"parameters": "head", "first": {"parameters": "head"}}},
            r"train\.first\.parameters: must be fewer than train\.parameters \(head\); got head",
        ),
        ({"train": {"first": {"epochs": 2}}}, r"train\.first\.epochs: must be less than schedule\.epochs \(2\); got 2"),
        ({"train": {"first": {"epochs": 0}}}, r"train\.first\.epochs: must be at least 1"),
        ({"train": {"parameters": "heads"}}, r"train\.parameters: 'heads' is not a choice.*did you mean head"),
        (
            {"host": {"pretrained": True, "weights": "a.pth"}},
            r"host\.weights: cannot be combined with pretrained: true",
        ),
    ],
)
def test_choices_that_make_no_sense_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        toy_recipe(**sections)


def test_the_head_is_where_timm_says() -> None:
    swin = timm.create_model("swin_tiny_patch4_window7_224", embed_dim=12, depths=(1,), num_heads=(1,))
    assert model_parts(swin).head == ("head.fc",)
    with pytest.raises(ConfigError, match="the head of this model is unknown"):
        trained_names(nn.Linear(2, 2), "head")


class OwnParts(Toy):
    """The last block belongs to the head, and the head is new."""

    name = "own_parts"

    def parts(self, model: nn.Module) -> ModelParts:
        return ModelParts(head=("blocks.1", "norm"), new=("head",))


def test_a_task_decides_what_is_head_and_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "own_parts", f"{__name__}:OwnParts")
    optimizer = {"layer_decay": 0.5, "new_lr_scale": 3.0}
    recipe = toy_recipe({"name": "own_parts"}, optimizer=optimizer, train={"parameters": "head"})
    before = build_model(recipe, {"num_classes": 3}).state_dict()
    train(recipe, tmp_path, progress=Silent())
    after = final_state(tmp_path)
    moved = {name for name, value in after["model"].items() if not torch.equal(before[name], value)}
    assert moved == {name for name in before if name.startswith(("blocks.1.", "norm.", "head."))}
    scales = {name: group["lr_scale"] for group in after["optimizer"]["param_groups"] for name in group["params"]}
    assert scales.pop("head.weight") == scales.pop("head.bias") == 3.0
    assert max(scales.values()) <= 0.5, "that of the host's layers"


def test_everything_around_a_host_is_new() -> None:
    class Around(HostedModel):
        def __init__(self, host: nn.Module) -> None:
            super().__init__(host)
            self.h = nn.Parameter(torch.zeros(2))
            self.neck = nn.Linear(2, 2)

    parts = model_parts(Around(timm.create_model("vit_tiny_patch16_224", depth=1)))
    assert parts == ModelParts(head=("host.head",), new=("h", "neck"))
    names = {"h": "new", "neck.weight": "new", "host.head.bias": "head", "host.cls_token": "host"}
    assert {name: parts.of(name) for name in names} == names
