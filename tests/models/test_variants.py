"""Variants of timm's models: ViTs with a uniform head or an extra half block, and a small MLP-Mixer."""

from __future__ import annotations

import pytest
import timm
import torch
from timm.models.mlp_mixer import MlpMixer

import attngraft
import attngraft.models  # registers them
from attngraft.tensors import meta_device

SMALL = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}


def parameters(name: str, **arguments: object) -> int:
    return sum(parameter.numel() for parameter in timm.create_model(name, **arguments).parameters())


def test_an_extra_mlp_adds_as_many_parameters_as_the_paper_prints() -> None:
    plain = parameters("vit_tiny_patch16_224", depth=8)
    attention = parameters("vit_tiny_patch16_224_extra_attention") - plain
    mlp = parameters("vit_tiny_patch16_224_extra_mlp") - plain
    assert (attention, mlp) == (148_608, 296_256)
    assert mlp - attention == 147_648  # printed as 0.15M


@pytest.mark.parametrize(("half", "branch"), [("attention", "attn"), ("mlp", "mlp")])
def test_the_extra_half_is_half_of_a_block(half: str, branch: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model(f"vit_tiny_patch16_224_extra_{half}", **SMALL).eval()
    whole = timm.create_model("vit_tiny_patch16_224", **{**SMALL, "depth": 3}).eval()
    weights = model.state_dict()
    number = "1" if branch == "attn" else "2"
    renamed = {
        name.replace("blocks.2.norm", f"blocks.2.norm{number}").replace("blocks.2.branch", f"blocks.2.{branch}"): value
        for name, value in weights.items()
    }
    missing, unexpected = whole.load_state_dict(renamed, strict=False)
    assert not unexpected
    other = whole.blocks[2].mlp.fc2 if branch == "attn" else whole.blocks[2].attn.proj
    with torch.no_grad():
        other.weight.zero_(), other.bias.zero_()  # the other half then adds nothing
        images = torch.randn(2, 3, 16, 16)
        assert torch.equal(model(images), whole(images))
    assert all(name.startswith("blocks.2.") for name in missing)


def test_blocks_before_the_extra_half_are_a_host() -> None:
    model = timm.create_model("vit_tiny_patch16_224_extra_mlp", **SMALL)
    report = attngraft.graft(model, "cb_s")
    assert [entry.site for entry in report.entries] == ["blocks.0.mlp", "blocks.1.mlp"]
    model(torch.randn(1, 3, 16, 16)).sum().backward()


@pytest.mark.parametrize(
    ("variant", "parameters"), [("replaced", 21_459_304), ("compensated", 22_049_896), ("appended", 29_164_712)]
)
def test_parameters_of_uniform_vits(variant: str, parameters: int) -> None:
    with meta_device():
        model = timm.create_model(f"vit_small_patch16_224_cb_{variant}")
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_uniform_vits_run_and_take_mlp_grafts() -> None:
    model = attngraft.create_model(
        "vit_small_patch16_224_cb_appended", graft="cb_s", depth=1, img_size=32, num_classes=3
    )
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    assert model.state_dict()["blocks.0.mlp.grafts.cb_s.scale"].shape == (448,)


def test_attention_of_uniform_vits_is_refused() -> None:
    model = attngraft.create_model("vit_small_patch16_224_cb_replaced", depth=1, img_size=32)
    with pytest.raises(attngraft.HostError, match="its attention is UniformHeadAttention"):
        attngraft.graft(model, "horizontal")


def test_a_mixer_of_any_size() -> None:
    torch.manual_seed(0)
    model = attngraft.create_model(
        "small_mixer", graft="cb_s(init=1)", patch_size=8, embed_dim=16, num_blocks=2, num_classes=3
    ).eval()
    assert type(model) is MlpMixer
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    assert model.state_dict()["blocks.1.mlp_channels.grafts.cb_s.scale"].shape == (16,)


def test_default_size_and_configuration_of_the_mixer() -> None:
    model = timm.create_model("small_mixer", num_classes=10)
    assert (len(model.blocks), model.stem.num_patches, model.embed_dim) == (4, 64, 64)
    assert model.pretrained_cfg["input_size"] == (3, 32, 32)
    assert model.default_cfg["classifier"] == "head"


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224_extra_mlp", "vit_small_patch16_224_cb_replaced", "small_mixer"])
def test_there_are_no_weights(name: str) -> None:
    with pytest.raises(attngraft.HostError, match=f"has no weights for {name}.*; train without"):
        attngraft.create_model(name, pretrained=True)
