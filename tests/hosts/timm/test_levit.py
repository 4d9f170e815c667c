"""Peculiarities of LeViT: maps, rows by head, subsampling, cached biases."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import timm
import torch
from torch import nn

import attngraft
from attngraft.attention import AttentionGeometry, MlpGeometry
from attngraft.hosts import find_host, forget
from tests.contract.timm.test_levit import TINY, unlike_at_first


def make(name: str = "levit_256d", **arguments: Any) -> nn.Module:
    torch.manual_seed(1)
    return unlike_at_first(timm.create_model(name, **(TINY | arguments))).eval()


def test_geometry_of_levit_128s() -> None:
    with torch.device("meta"):
        host = find_host(timm.create_model("levit_128s"))
    assert len(host.sites) == 2 * 11
    block, down = (
        next(s.geometry for s in host.sites if s.path.endswith(end)) for end in ("0.attn", "attn_downsample")
    )
    assert isinstance(block, AttentionGeometry)
    assert isinstance(down, AttentionGeometry)
    assert (block.dim, block.heads, block.key_width, block.value_width, block.grid) == (128, 4, 16, 32, (14, 14))
    assert (block.projection.bias, block.projection.norm, block.projection.activation) == (False, "batch", "hard_swish")
    assert (down.dim, down.out_dim, down.tokens, down.query_tokens, down.heads) == (128, 256, 196, 49, 8)
    assert down.shape("weights") == (1, 8, 49, 196)
    assert down.shape("tokens") == (1, 49, 256)
    after = next(site.geometry for site in host.sites if site.path == "stages.1.downsample.mlp")
    assert isinstance(after, MlpGeometry)
    assert (after.dim, after.hidden, after.tokens) == (256, 512, 49)


@pytest.mark.parametrize("name", ["levit_256d", "levit_conv_256d"])
def test_rows_of_a_head_make_its_queries_keys_and_values(name: str) -> None:
    """Rows set to zero affect their own head alone."""
    for site in find_host(make(name)).sites:
        geometry = site.geometry
        if not isinstance(geometry, AttentionGeometry):
            continue
        x = torch.randn(2, geometry.tokens, geometry.dim)
        for role in ("q", "k", "v"):
            model = make(name)
            module = model.get_submodule(site.path)
            for parameter, start, stop in geometry.head_rows(role, 1, 2):
                module.get_parameter(parameter).data[start:stop] = 0
            attngraft.graft(model, f"identity(stage=heads)@{site.path}")
            with torch.no_grad():
                part = getattr(module.project(x), role)
            largest = part.abs().amax(dim=(0, 2, 3))
            assert [bool(each > 0) for each in largest] == [head != 1 for head in range(geometry.heads)]


@pytest.mark.parametrize("name", ["levit_128s", "levit_conv_128s"])
def test_maps_that_are_not_square(name: str) -> None:
    model = make(name, img_size=(48, 80))
    images = torch.randn(2, 3, 48, 80)
    with torch.no_grad():
        expected = model(images)
        with attngraft.record(model) as recording:
            assert torch.equal(model(images), expected)
        assert recording["stages.0.blocks.0.attn"]["weights"].shape == (2, 2, 15, 15)
        assert recording["stages.1.downsample.attn_downsample"]["weights"].shape == (2, 4, 6, 15)
        attngraft.graft(model, "vertical + cb(at=both)")
        assert not torch.equal(model(images), expected)
        attngraft.ungraft(model)
        assert torch.equal(model(images), expected)
    assert find_host(model).adapter.example_inputs(model, batch=2)[0].shape == images.shape


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("levit_256d", {"out_indices": (0, 1)}),
        ("levit_conv_256d", {"out_indices": (0, 1)}),
        ("levit_conv_256d", {"out_indices": (0,), "feature_cls": "dict"}),
    ],
)
def test_features_only_has_the_hosts_own_paths(name: str, arguments: dict[str, Any], tmp_path: Any) -> None:
    whole, features = make(name), make(name, features_only=True, **arguments)
    images = torch.randn(2, 3, 48, 48)
    attngraft.graft(whole, "vertical + cb@stages.0")
    attngraft.graft(features, "vertical@stages.0 + cb@stages.0")
    assert {site.path for site in find_host(features).sites} <= {site.path for site in find_host(whole).sites}
    with torch.no_grad():
        before = features(images)
        attngraft.ungraft(features)
        after = features(images)
    first = [next(iter(each.values())) if isinstance(each, dict) else each[0] for each in (before, after)]
    assert not torch.equal(*first)


def test_grafted_attention_keeps_no_biases_of_before() -> None:
    """timm caches biases in evaluation mode with their graph, so a second backward or a copy would fail."""
    model, images = make(), torch.randn(1, 3, 48, 48)
    attngraft.graft(model, "identity + identity(stage=heads)")
    model(images).sum().backward()
    model(images).sum().backward()
    before = model(images)
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "attention_biases"):
                module.attention_biases.add_(torch.randn_like(module.attention_biases))
    assert not torch.equal(copy.deepcopy(model)(images), before)


def test_an_average_of_weights_is_evaluated_with_its_own_biases() -> None:
    """An averaged model is never in training mode, where older timm clears its cache."""
    model, images = make(), torch.randn(1, 3, 48, 48)
    with torch.no_grad():
        before = model(images)
        for module in model.modules():
            if hasattr(module, "attention_biases"):
                module.attention_biases.add_(1.0).mul_(torch.randn_like(module.attention_biases))
        forget(model)
        assert not torch.equal(model(images), before)


def test_a_model_that_ran_can_be_measured() -> None:
    model = make()
    model(torch.randn(1, 3, 48, 48))
    assert attngraft.plan(model, "cb", measure=True).change is not None


def test_a_graft_file_holds_what_the_norms_and_the_head_have_seen(tmp_path: Any) -> None:
    model, fresh = make(), make()
    attngraft.graft(model, "horizontal")
    with torch.no_grad():
        model.head.bn.running_mean.add_(1.0)
        model.stages[0].blocks[0].mlp.ln1.bn.running_var.mul_(2.0)
    path = attngraft.save_grafts(model, tmp_path / "grafts.safetensors", include=["head", "norms"])
    attngraft.load_grafts(fresh, path)
    images = torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        assert torch.equal(fresh(images), model(images))


def test_activations_go_by_timms_names() -> None:
    site = find_host(make(act_layer="gelu")).sites[0]
    assert isinstance(site.geometry, AttentionGeometry)
    assert site.geometry.projection.activation == "gelu"
