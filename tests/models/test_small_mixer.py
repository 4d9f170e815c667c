"""A Mixer whose size is said in the arguments."""

from __future__ import annotations

import pytest
import timm
import torch
from timm.models.mlp_mixer import MlpMixer

import attngraft


def test_a_mixer_of_any_size() -> None:
    torch.manual_seed(0)
    model = attngraft.create_model(
        "small_mixer", graft="cb_s(init=1)", patch_size=8, embed_dim=16, num_blocks=2, num_classes=3
    ).eval()
    assert type(model) is MlpMixer
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    assert model.state_dict()["blocks.1.mlp_channels.grafts.cb_s.scale"].shape == (16,)


def test_its_own_size_and_its_configuration() -> None:
    model = timm.create_model("small_mixer", num_classes=10)
    assert (len(model.blocks), model.stem.num_patches, model.embed_dim) == (4, 64, 64)
    assert model.pretrained_cfg["input_size"] == (3, 32, 32)
    assert model.default_cfg["classifier"] == "head"


def test_there_are_no_weights() -> None:
    with pytest.raises(attngraft.HostError, match="pretrained=False"):
        attngraft.create_model("small_mixer", pretrained=True)
