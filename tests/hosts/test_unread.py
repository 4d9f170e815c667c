"""Refusals name unsupported attention with the reason."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
import timm
import torch
from torch import nn

import attngraft
from attngraft.hosts import host_adapters, registry
from attngraft.hosts.unread import UNREAD, why_unread


@pytest.mark.parametrize("name", UNREAD)
def test_every_class_is_in_timm(name: str) -> None:
    module, _, kind = name.rpartition(".")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError:
        pytest.skip(f"timm {timm.__version__} has no {module}")
    if not hasattr(found, kind):
        pytest.skip(f"{module} of timm {timm.__version__} has no {kind}")
    assert issubclass(getattr(found, kind), nn.Module)


def test_the_refusal_of_a_convolutional_network_names_its_attention() -> None:
    with torch.device("meta"):
        model = timm.create_model("lambda_resnet26t")
    with pytest.raises(
        attngraft.HostError, match=r"Its attention is not supported: LambdaLayer: it is linear.*Supported: "
    ):
        attngraft.graft(model, "horizontal")


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("ParallelScalingBlock", "its MLP and its attention run in parallel: one projection"),
        ("ParallelThingsBlock", "several parallel attentions"),
        ("DiffParallelScalingBlock", "difference of two softmaxes"),
    ],
)
def test_the_refusal_of_other_vit_blocks_names_the_reason(block: str, why: str) -> None:
    from timm.models import vision_transformer

    if not hasattr(vision_transformer, block):
        pytest.skip(f"timm {timm.__version__} has no {block}")
    with torch.device("meta"):
        model = vision_transformer.VisionTransformer(
            img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=3, block_fn=getattr(vision_transformer, block)
        )
    with pytest.raises(attngraft.HostError, match=f"{block}; supported are Block and ResPostBlock .*{why}"):
        attngraft.graft(model, "horizontal")


def test_a_difference_of_two_softmaxes_is_refused_with_the_reason() -> None:
    with torch.device("meta"):
        model = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, depth=1, attn_layer="diff")
    with pytest.raises(attngraft.HostError, match="its attention is DiffAttention: its map is the difference of two"):
        attngraft.plan(model, "horizontal")
    assert attngraft.plan(model, "cb").entries  # its MLPs are timm's own


def test_a_model_without_attention_has_no_such_reason() -> None:
    assert why_unread(nn.Sequential(nn.Linear(2, 2))) is None
    with pytest.raises(attngraft.HostError, match="contains none. For your own model, .*register_host.*Supported: "):
        attngraft.graft(nn.Sequential(nn.Linear(2, 2)), "cb")


def test_the_refusal_lists_the_adapters_for_models_of_the_same_package_alone() -> None:
    with torch.device("meta"):
        model = timm.create_model("resnet18")
    with pytest.raises(
        attngraft.HostError, match=r"Supported: timm \(vit, swin, .*\), t2t_vit, bixt, elsa \(swin, volo\) \(see: "
    ) as raised:
        attngraft.graft(model, "cb")
    assert "torchvision" not in str(raised.value)
    assert len(str(raised.value)) < 1000


class Own(nn.Module):
    """A model with attention from an unknown package."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return (q @ k.mT).softmax(dim=-1) @ v


def test_the_refusal_of_a_users_model_lists_every_adapter() -> None:
    with pytest.raises(attngraft.HostError) as raised:
        attngraft.graft(Own(), "cb")
    message = str(raised.value)
    assert "Own is not a supported host" in message
    assert "write an adapter and call attngraft.register_host(adapter)" in message
    listed = message.partition("Supported: ")[2].removesuffix(" (see: attngraft list hosts).")
    found = []
    for family, members, alone in re.findall(r"([\w]+) \(([^)]*)\)|([\w.]+)", listed):
        found += [alone] if alone else [f"{family}.{member}" for member in members.split(", ")]
    assert sorted(found) == sorted(host_adapters())
    assert {"timm.vit", "torch.nn", "torchvision.swin", "bixt"} <= set(found)
    assert len(message) < 1000


def test_the_refusal_of_a_torch_layer_lists_the_adapter_of_torch() -> None:
    with pytest.raises(attngraft.HostError, match=r"register_host\(adapter\)\. Supported: torch\.nn \(see: "):
        attngraft.graft(nn.Linear(2, 2), "cb")


def test_the_adapter_of_another_package_is_listed_by_its_whole_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_adapters", host_adapters() | {"mine.tiny": host_adapters()["torch.nn"]})
    with pytest.raises(attngraft.HostError, match=r"Supported: timm \(vit, .*, mine\.tiny \(see: "):
        attngraft.graft(Own(), "cb")
