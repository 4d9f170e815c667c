"""Attention between points and latents: the recorded maps, and the points of each level."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import Tensor, nn

import attngraft
import attngraft.models  # registers the point models
from attngraft.analysis.cloud_attention import WAYS, CloudAttention, cloud_attention
from attngraft.errors import GraftSpecError, RecordError
from attngraft.models.points.operations import farthest_points, group
from attngraft.recording.record import record
from tests.contract.tester import randomize

SIZES = {"depth": 2, "embed_dim": 24, "num_heads": 3, "num_latents": 8}
LEVELS = {"reducers": (2, 3), "neighbors": 8}
CROSS = "blocks.{}.cross_attention_latents_token.attn"


def created(name: str, **arguments: object) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, **SIZES, **arguments)
    randomize(model)
    return model.eval()


def points(channels: int = 3) -> Tensor:
    return torch.randn(1, 48, channels, generator=torch.Generator().manual_seed(1))


def matches(found: CloudAttention, model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    with torch.no_grad(), record(model) as recording:
        model(*inputs)
    assert [layer.site for layer in found.layers] == [site for site in recording if set(WAYS) & set(recording[site])]
    for layer in found.layers:
        assert list(layer.maps) == [way for way in WAYS if way in recording[layer.site]]
        for way, weights in layer.maps.items():
            expected = recording[layer.site][way][0]
            assert (weights.numbers() - expected).abs().max() <= 0.01 * expected.max()


@pytest.mark.parametrize("graft", [None, "horizontal", "vertical"])
def test_the_maps_are_those_that_are_recorded(graft: str | None) -> None:
    model = created("bixt_points_naive")
    if graft is not None:
        attngraft.graft(model, graft)
        randomize(model, only_grafts=True)
    found = cloud_attention(model, (points(),))
    matches(found, model, (points(),))
    first, last = found.layers
    assert {way: tuple(each.bytes.shape) for way, each in first.maps.items()} == {
        WAYS[0]: (3, 8, 48),
        WAYS[1]: (3, 48, 8),
    }
    assert list(last.maps) == ["latents_to_tokens"]  # the last layer does not update the points
    assert first.points is last.points is None
    assert not found.missing


def test_the_last_layer_of_a_part_model() -> None:
    model, inputs = created("bixt_parts_naive"), (points(6), torch.tensor([2]))
    found = cloud_attention(model, inputs)
    matches(found, model, inputs)
    assert (found.layers[-1].site, list(found.layers[-1].maps)) == ("blocks.1.attn", ["tokens_to_latents"])


@pytest.mark.parametrize("name", ["bixt_points_hier", "bixt_parts_hier"])
def test_a_hierarchy_has_the_points_of_each_level(name: str) -> None:
    parts = name == "bixt_parts_hier"
    model = created(name, **LEVELS, **({"decoder": (16, 16)} if parts else {}))
    cloud = points(6 if parts else 3)
    inputs = (cloud, torch.tensor([2])) if parts else (cloud,)
    found = cloud_attention(model, inputs)
    matches(found, model, inputs)
    first = farthest_points(cloud[..., :3], 24)
    second = farthest_points(group(cloud[..., :3], first), 8)
    indices = [layer.points for layer in found.layers]
    assert [each.tolist() for each in indices if each is not None] == [first[0].tolist(), first[0][second[0]].tolist()]
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_refined_neighborhoods_keep_all_points() -> None:
    model = created("bixt_points_group", neighbors=8)
    assert [layer.points for layer in cloud_attention(model, (points(),)).layers] == [None, None]


def test_some_sites() -> None:
    model = created("bixt_points_naive")
    (layer,) = cloud_attention(model, (points(),), sites="blocks.1").layers
    assert layer.site == CROSS.format(1)
    with pytest.raises(RecordError, match="no chosen site has attention between points and latents: blocks.0.self"):
        cloud_attention(model, (points(),), sites="blocks.0.self_attention_latents")
    with pytest.raises(GraftSpecError, match=r"blocks\.7"):
        cloud_attention(model, (points(),), sites="blocks.7")


def test_networks_without_attention_and_diverged_ones() -> None:
    found = cloud_attention(timm.create_model("pointnet").eval(), (points(),))
    assert (found.layers, found.missing) == ([], "PointNet has no attention that can be recorded")
    model = created("bixt_points_naive")
    model.get_parameter("latents").data.fill_(torch.nan)
    with pytest.raises(RecordError, match="diverged"):
        cloud_attention(model, (points(),))
