"""The models of CB Table 1."""

from __future__ import annotations

import pytest
import timm
import torch

import attngraft
import attngraft.models


@pytest.mark.parametrize(
    ("variant", "parameters"), [("replaced", 21_459_304), ("compensated", 22_049_896), ("appended", 29_164_712)]
)
def test_parameters(variant: str, parameters: int) -> None:
    with torch.device("meta"):
        model = timm.create_model(f"vit_small_patch16_224_cb_{variant}")
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_they_run_and_take_mlp_grafts() -> None:
    model = attngraft.create_model(
        "vit_small_patch16_224_cb_appended", graft="cb_s", depth=1, img_size=32, num_classes=3
    )
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    assert model.state_dict()["blocks.0.mlp.grafts.cb_s.scale"].shape == (448,)


def test_their_attention_is_refused_with_the_reason() -> None:
    model = attngraft.create_model("vit_small_patch16_224_cb_replaced", depth=1, img_size=32)
    with pytest.raises(attngraft.HostError, match="its attention is UniformHeadAttention"):
        attngraft.graft(model, "horizontal")


def test_no_published_weights() -> None:
    with pytest.raises(attngraft.HostError, match="no published weights"):
        attngraft.create_model("vit_small_patch16_224_cb_replaced", pretrained=True)
