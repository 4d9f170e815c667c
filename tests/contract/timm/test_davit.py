"""Contract of timm's DaViT."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from timm.models.davit import DaVit
from torch import nn

import attngraft
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_eva import off_zero
from tests.contract.timm.test_vit import NO_CLASS_TOKEN


class TestDaVit(HostContract):
    """A map of 6 x 6 in padded windows of 4, then 3 x 3 in one window, alternating with channel attention."""

    layers = 4
    refused: ClassVar = NO_CLASS_TOKEN
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads", "cb(at=attention, scope=window)"]

    def make(self) -> nn.Module:
        model = DaVit(depths=(1, 1), embed_dims=(16, 24), num_heads=(2, 3), window_size=4, num_classes=5)
        model.pretrained_cfg = {"input_size": (3, 24, 24), "classifier": "head.fc"}  # no image size in the model
        return off_zero(model)


def test_attention_between_channels_is_refused_with_the_reason() -> None:
    for spec in ("horizontal", "bisa", "cb(at=attention)"):
        with pytest.raises(attngraft.GraftSpecError, match="between channels, so its softmax is not over tokens"):
            attngraft.graft(TestDaVit().make(), f"{spec}@stages.*.blocks.*.1")


@torch.no_grad()
def test_zeros_that_fill_up_windows_take_no_part_in_the_inverse_branch() -> None:
    model = TestDaVit().make().eval()
    attngraft.graft(model, "misa@stages.0")
    block = model.stages[0].blocks[0][0]
    maps = torch.randn(1, 6, 6, 16)
    corner = block.branch(maps, (4, 4))[:, 4:, 4:]
    torch.testing.assert_close(corner, block.branch(maps[:, 4:, 4:], (2, 2)))  # the same tokens without padding
