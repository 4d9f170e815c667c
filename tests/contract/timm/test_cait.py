"""Contract of timm's CaiT."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import timm
import torch
from torch import nn

import attngraft
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_eva import off_zero
from tests.contract.timm.test_vit import NO_WINDOWS

TINY: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "num_heads": 2, "num_classes": 5}


class TestCait(HostContract):
    """Two talking-heads blocks on 4 x 4 patches, two class-attention blocks."""

    layers = 4
    refused: ClassVar = NO_WINDOWS | {"bisa(learned=true, norm=true)": r"blocks\.0\.attn .*talking heads.*; no site"}
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads"]

    def make(self) -> nn.Module:
        model = off_zero(timm.create_model("cait_xxs24_224", **TINY, depth=2))
        for name, parameter in model.named_parameters():
            if ("proj_l" in name or "proj_w" in name) and parameter.device.type != "meta":
                nn.init.normal_(parameter, std=0.7)  # otherwise the maps are nearly uniform for all images
        return model


def test_talking_heads_refuse_what_needs_the_scores_of_a_head() -> None:
    with pytest.raises(attngraft.GraftSpecError, match=r"lack it: its heads are mixed .*talking heads.*horizontal"):
        attngraft.graft(TestCait().make(), "bisa@blocks")


@torch.no_grad()
def test_the_map_is_recorded_between_the_two_mixings() -> None:
    model, images = TestCait().make().eval(), torch.randn(1, 3, 32, 32)
    found = []
    for mixing in (torch.eye(2), torch.tensor([[0.0, 2.0], [1.0, 0.0]])):
        model.blocks[0].attn.proj_w.weight.copy_(mixing)
        with attngraft.record(model, sites="blocks.0") as recording:
            model(images)
        found.append(recording["blocks.0.attn"])
    assert torch.equal(found[0]["weights"], found[1]["weights"])
    assert not torch.allclose(found[0]["heads"], found[1]["heads"])


@torch.no_grad()
def test_a_uniform_head_is_mixed_into_the_others_as_the_host_does() -> None:
    torch.manual_seed(0)
    model = TestCait().make().eval()
    images = torch.randn(1, 3, 32, 32)
    attngraft.graft(model, "uniform_heads(count=2)@blocks.0")
    module = model.blocks[0].attn
    with attngraft.record(model, ["heads"], sites="blocks.0") as recording:
        model(images)
    tokens = model.blocks[0].norm1(model.patch_embed(images) + model.pos_embed)
    values = module.qkv(tokens).unflatten(-1, (3, 2, -1))[:, :, 2].transpose(1, 2)
    gains = module.proj_w.weight.sum(1) / 16 + module.proj_w.bias  # every weight is 1 / 16 before the second mixing
    expected = gains.view(1, 2, 1, 1) * values.sum(2, keepdim=True)
    torch.testing.assert_close(recording["blocks.0.attn"]["heads"], expected.expand(-1, -1, 16, -1))
