"""Contract of timm's ConViT."""

from __future__ import annotations

from typing import ClassVar

import timm
from torch import nn

from attngraft.hosts import find_host
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_vit import NO_WINDOWS


class TestConVit(HostContract):
    """A gated block without a class token, then a ViT block with it."""

    layers = 2
    refused: ClassVar = NO_WINDOWS
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads"]
    where: ClassVar = {"bisa": "blocks.1"}
    checkpoints = False

    def make(self) -> nn.Module:
        return timm.create_model(
            "convit_tiny",
            img_size=16,
            patch_size=8,
            embed_dim=8,
            num_heads=3,
            depth=2,
            local_up_to_layer=1,
            num_classes=5,
        )

    def test_gated_blocks_say_why_they_have_no_scores(self, host: nn.Module) -> None:
        entry = {site.path: site for site in find_host(host).sites}["blocks.0.attn"]
        assert "a mixture of the softmax and a map of positions" in entry.missing["mix"]
