"""Contract of timm's TinyViT."""

from __future__ import annotations

from typing import ClassVar

import torch
from timm.models.swin_transformer import window_partition, window_reverse
from timm.models.tiny_vit import Attention, TinyVit
from torch import nn

import attngraft
from attngraft.hosts import forget
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_eva import off_zero
from tests.contract.timm.test_levit import unlike_at_first
from tests.contract.timm.test_vit import NO_CLASS_TOKEN


class TestTinyViT(HostContract):
    """Convolutions, a map of 6 x 6 in padded windows of 4, then 3 x 3 in one window."""

    layers = 2
    refused: ClassVar = NO_CLASS_TOKEN
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads", "cb(at=attention, scope=window)"]

    def make(self) -> nn.Module:
        model = TinyVit(
            embed_dims=(8, 16, 24),
            depths=(1, 1, 1),
            num_heads=(1, 2, 3),
            window_sizes=(4, 4, 3),
            drop_path_rate=0.0,
            num_classes=5,
        )
        model.pretrained_cfg = {"input_size": (3, 48, 48), "classifier": "head.fc"}  # no image size in the model
        model = off_zero(unlike_at_first(model))
        if model.head.fc.weight.device.type != "meta":
            nn.init.normal_(model.head.fc.weight, std=0.3)
        return model


@torch.no_grad()
def test_zeros_that_fill_up_windows_take_no_part_in_the_inverse_branch() -> None:
    model = TestTinyViT().make().eval()
    attngraft.graft(model, "misa@stages.1")
    block = model.stages[1].blocks[0]
    maps, shown = torch.randn(1, 8, 8, 16), torch.zeros(1, 8, 8, 1)
    shown[:, :6, :6] = 1
    windows, present = (window_partition(each, (4, 4)).flatten(1, 2) for each in (maps, shown))
    whole = window_reverse(block.attn(windows, present.squeeze(-1) > 0).unflatten(1, (4, 4)), (4, 4), 8, 8)
    # independent of the other windows
    torch.testing.assert_close(block.branch(maps[:, :6, :6], (4, 4)), whole[:, :6, :6])


def test_what_an_evaluation_keeps_is_no_obstacle() -> None:
    """timm caches the biases in evaluation mode with their graph, which cannot be copied."""
    model = TestTinyViT().make().eval()
    images = torch.randn(1, 3, 48, 48)
    before = model(images)
    attngraft.graft(model, "horizontal(identity=true)")
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Attention):
                module.attention_biases.mul_(-3)
    grafted = model(images)
    assert not torch.allclose(grafted, before)
    attngraft.ungraft(model)
    forget(model)
    torch.testing.assert_close(model(images), grafted, atol=1e-5, rtol=1e-4)
