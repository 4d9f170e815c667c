"""torch's attention in another package's unsupported model is not grafted as if it were the whole model."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torchvision
from timm.layers.ml_decoder import MLDecoder
from torch import Tensor, nn

import attngraft
from attngraft.hosts import find_host

OURS = r"is not a supported host, and contains {} at {}, which is not supported; .*"
ALONE = r'graft\(model\.get_submodule\("{}"\), \.\.\.\)\. .*register_host.*list hosts'


def refused(model: nn.Module, other: str, where: str, part: str) -> None:
    with pytest.raises(attngraft.HostError, match=OURS.format(other, where) + ALONE.format(part)) as raised:
        attngraft.graft(model, "horizontal")
    assert str(raised.value).startswith(type(model).__name__)
    report = attngraft.graft(model.get_submodule(part), "horizontal")
    assert len(report.entries) == 1


def siglip2(kind: str = "Siglip2VisionModel", base: type | None = None) -> Any:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'attngraft[hf]'")
    config = transformers.Siglip2VisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_patches=4, patch_size=2
    )
    return (base or getattr(transformers, kind))(config)


class Wrapper(nn.Module):
    """A user-defined model around a vision tower."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2)
        self.tower = tower

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_the_pooling_head_of_an_unread_tower() -> None:
    refused(siglip2(), "Siglip2Attention", "encoder.layers.0.self_attn", "head.attention")


def test_the_same_in_a_users_model() -> None:
    refused(Wrapper(siglip2()), "Siglip2Attention", "tower.encoder.layers.0.self_attn", "tower.head.attention")


def test_a_subclass_of_an_unread_class_is_refused_too() -> None:
    base: Any = type(siglip2())
    refused(siglip2(base=type("Mine", (base,), {})), "Siglip2Attention", "encoder.layers.0.self_attn", "head.attention")


def test_a_decoder_in_place_of_timms_classifier() -> None:
    model: Any = timm.create_model("shvit_s1", num_classes=4)
    model.head = MLDecoder(num_classes=4, decoder_embedding=16, initial_num_features=16)
    with pytest.raises(attngraft.HostError, match="contains SHSA at stages.*SHSA: its single head.*list hosts"):
        attngraft.graft(model, "horizontal")


def test_torchs_attention_alone_is_supported() -> None:
    head: Any = siglip2().head
    assert [site.path for site in find_host(head).sites] == ["attention"]
    encoder: Any = torchvision.models.VisionTransformer(16, 8, 1, 2, 16, 16).encoder
    assert [site.path for site in find_host(encoder).sites] == ["layers.encoder_layer_0.self_attention"]
    resnet: Any = timm.create_model("resnet18", num_classes=4)
    resnet.fc = MLDecoder(num_classes=4, decoder_embedding=16, initial_num_features=512)
    assert [site.path for site in find_host(resnet).sites] == ["fc.decoder.layers.0.multihead_attn"]


def test_attention_beside_an_unread_model_is_the_users() -> None:
    unread: Any = timm.create_model("shvit_s1", num_classes=4)
    assert [site.path for site in find_host(Wrapper(unread)).sites] == ["attention"]


def test_a_grafted_part_does_not_open_the_whole() -> None:
    model = siglip2()
    attngraft.graft(model.head, "horizontal")
    with pytest.raises(attngraft.HostError, match="which is not supported; to graft only its torch attention"):
        find_host(model)
    attngraft.ungraft(model.head)
