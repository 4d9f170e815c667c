"""Image classifiers of transformers with timm's interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models import group_parameters

import attngraft
from attngraft.cli import main

pytest.importorskip("transformers", reason="needs the extra hf")

TINY: dict[str, Any] = {
    "num_classes": 5,
    "img_size": 16,
    "patch_size": 8,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
}

LAST_NORM = (".layernorm.weight", ".layernorm.bias")


def make(**arguments: Any) -> Any:
    torch.manual_seed(0)
    return attngraft.create_model("transformers_classifier", **(TINY | arguments))


def test_logits_are_the_models_own() -> None:
    model, images = make().eval(), torch.randn(2, 3, 16, 16)
    assert torch.equal(model(images), model.model(pixel_values=images).logits)
    assert model(images).shape == (2, 5)
    assert model.get_classifier() is model.model.classifier


@pytest.mark.parametrize("model_type", ["vit", "deit", "dinov2"])
def test_grafts_stand_in_it(model_type: str) -> None:
    model, images = make(model_type=model_type).eval(), torch.randn(2, 3, 16, 16)
    before = model(images)
    if model_type == "dinov2" and not hasattr(model.model.dinov2.encoder.layer[0].attention, "config"):
        pytest.skip("its sites are read from transformers 5.20 on")
    report = attngraft.graft(model, "horizontal + cb_s(init=1)")
    assert len({entry.site for entry in report.entries}) == 4
    assert not torch.equal(model(images), before)
    attngraft.ungraft(model)
    assert torch.equal(model(images), before)


@pytest.mark.parametrize("model_type", ["vit", "dinov2"])
def test_parameters_by_depth(model_type: str) -> None:
    """What layer-wise decay asks for: embeddings, two layers, and the rest."""
    model = make(model_type=model_type)
    groups = group_parameters(model, model.group_matcher())
    assert len(groups) == 4
    assert all("embeddings" in name for name in groups[0])
    for depth in (0, 1):
        assert all(f".{depth}." in name or name.endswith(LAST_NORM) for name in groups[depth + 1])
    assert "model.classifier.weight" in groups[max(groups)]
    assert [name.endswith(LAST_NORM) for name in groups[2]].count(True) == 2  # timm's rule for the last norm
    assert any(name.endswith("cls_token") for name in model.no_weight_decay())
    assert not any("weight" in name for name in model.no_weight_decay())


def test_gradient_checkpointing_changes_nothing() -> None:
    model, images = make().train(), torch.randn(2, 3, 16, 16)
    expected = torch.autograd.grad(model(images).sum(), model.model.classifier.weight)[0]
    model.set_grad_checkpointing()
    assert any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    torch.testing.assert_close(torch.autograd.grad(model(images).sum(), model.model.classifier.weight)[0], expected)
    model.set_grad_checkpointing(False)
    assert not any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pretrained": True}, "--weights FOLDER"),
        ({"model_type": "vitt"}, "no configuration of model_type 'vitt'"),
        ({"depth": 2}, "no field 'depth'"),
    ],
)
def test_invalid_arguments_are_explained(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(attngraft.HostError, match=message):
        make(**arguments)


def test_its_inputs_are_those_of_the_configuration() -> None:
    data = timm.data.resolve_model_data_config(make(in_chans=1))
    assert (data["input_size"], data["mean"]) == ((1, 16, 16), (0.5, 0.5, 0.5))


@pytest.mark.slow
def test_it_is_trained_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {**{name: value for name, value in TINY.items() if name != "num_classes"}, "img_size": 8, "patch_size": 4}
    host = [f"--host-arg={name}={value}" for name, value in sizes.items()]
    train = [
        "train",
        "--host",
        "transformers_classifier",
        *host,
        "--graft",
        "cb_s",
        "--data",
        "digits",
        "--epochs",
        "1",
    ]
    for arguments in (
        [*train, "--set", "train.threads=1", "--out", str(tmp_path / "run")],
        ["export", str(tmp_path / "run"), "--to", "torch", "--out", str(tmp_path / "out")],
    ):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert not stop.value.code, capsys.readouterr().err
    assert attngraft.load(tmp_path / "out")(torch.randn(1, 3, 8, 8)).shape == (1, 10)
