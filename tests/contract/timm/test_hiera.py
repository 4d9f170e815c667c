"""Contract of timm's Hiera."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import timm
import torch
from torch import nn

import attngraft
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_vit import NO_CLASS_TOKEN

TINY: dict[str, Any] = {
    "img_size": (32, 32),
    "embed_dim": 8,
    "num_heads": 1,
    "stages": (1, 2, 1),
    "q_pool": 2,
    "mask_unit_size": (4, 4),
    "mask_unit_attn": (True, True, False),
    "num_classes": 5,
}


class TestHiera(HostContract):
    """Four mask units of 4 x 4; blocks with pooled queries within units, within units, and pooled over the whole map."""

    layers = 4
    refused: ClassVar = NO_CLASS_TOKEN
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads", "cb(at=attention, scope=window)"]
    where: ClassVar = {"bisa": "blocks.0,blocks.2", "cb(at=attention, scope=window)": "blocks.0-2"}
    extras: ClassVar[dict[str, Any]] = {}

    def make(self) -> nn.Module:
        model = timm.create_model("hiera_tiny_224", **TINY, **self.extras)
        nn.init.normal_(model.head.fc.weight, std=0.1)  # initialized to zero
        return model


@pytest.mark.slow
class TestHieraScaled(TestHiera):
    """Concatenated pooled shortcuts instead of a projection, LayerScale."""

    specs: ClassVar = ONE_PER_STAGE[1:3]
    extras: ClassVar = {"use_expand_proj": False, "init_values": 0.5}


@torch.no_grad()
def test_a_mask_unit_attends_within_itself() -> None:
    torch.manual_seed(0)
    host = TestHiera().make().eval()
    attngraft.graft(host, "horizontal + cb(at=attention, scope=window)@blocks.0")
    attention, x = host.blocks[0].attn, torch.randn(1, 64, 8)
    changed = x.clone()
    changed[:, 1::4] += 1  # every token of the second unit of four
    moved = (attention(changed) != attention(x)).any(-1)[0]
    assert moved.view(16, 4).any(0).tolist() == [False, True, False, False]


@torch.no_grad()
def test_pooled_queries_ask_for_the_tokens_that_the_host_pools() -> None:
    host = TestHiera().make().eval()
    attngraft.graft(host, "vertical@blocks.1")
    seen: list[Any] = []
    host.blocks[1].attn.grafts["vertical"].register_forward_hook(lambda module, given, output: seen.append(given[1]))
    x = torch.randn(1, 64, 8)
    host.blocks[1].attn(x)
    largest = x.view(1, 4, 16, 8).amax(1)  # as the block pools its shortcut
    assert torch.equal(seen[0].view(4, 4, 8).transpose(0, 1).flatten(0, 1), largest[0])
