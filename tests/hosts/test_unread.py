"""Refusals name unsupported attention with the reason."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import timm
import torch
from torch import nn

import attngraft
from attngraft.hosts.unread import UNREAD, why_unread
from attngraft.tensors import meta_device


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
    with meta_device():
        model = timm.create_model("lambda_resnet26t")
    with pytest.raises(
        attngraft.HostError, match=r"Its attention is not supported: LambdaLayer: it is linear.*list hosts"
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
    with meta_device():
        model = vision_transformer.VisionTransformer(
            img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=3, block_fn=getattr(vision_transformer, block)
        )
    with pytest.raises(attngraft.HostError, match=f"{block}; supported are Block and ResPostBlock .*{why}"):
        attngraft.graft(model, "horizontal")


def test_a_difference_of_two_softmaxes_is_refused_with_the_reason() -> None:
    with meta_device():
        model = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, depth=1, attn_layer="diff")
    with pytest.raises(attngraft.HostError, match="its attention is DiffAttention: its map is the difference of two"):
        attngraft.plan(model, "horizontal")
    assert attngraft.plan(model, "cb").entries  # its MLPs are timm's own


def test_a_model_without_attention_has_no_such_reason() -> None:
    assert why_unread(nn.Sequential(nn.Linear(2, 2))) is None
    with pytest.raises(attngraft.HostError, match="contains none. For your own model, .*register_host.*list hosts"):
        attngraft.graft(nn.Sequential(nn.Linear(2, 2)), "cb")


class Own(nn.Module):
    """A model with attention from an unknown package."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return (q @ k.mT).softmax(dim=-1) @ v


def test_the_refusal_is_short_and_names_the_remedies() -> None:
    with pytest.raises(attngraft.HostError) as raised:
        attngraft.graft(Own(), "cb")
    message = str(raised.value)
    assert "Own is not a supported host" in message
    assert "write an adapter and call attngraft.register_host(adapter)" in message
    assert "attngraft list hosts" in message
    assert "--against HOST compares any host without a graft" in message
    assert len(message) < 350
