"""Contract of timm's GCViT."""

from __future__ import annotations

from typing import ClassVar

import pytest
from timm.models.gcvit import GlobalContextVit
from torch import nn

import attngraft
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_eva import off_zero
from tests.contract.timm.test_vit import NO_CLASS_TOKEN


class TestGCViT(HostContract):
    """A map of 8 x 8 in windows of 4, then one of 4 x 4 in windows of 2; every second block has global queries."""

    layers = 4
    refused: ClassVar = NO_CLASS_TOKEN
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads", "cb(at=attention, scope=window)"]
    where: ClassVar = {"bisa": "stages.*.blocks.0"}

    def make(self) -> nn.Module:
        return off_zero(
            GlobalContextVit(
                img_size=32,
                window_ratio=(8, 16),
                embed_dim=16,
                depths=(2, 2),
                num_heads=(2, 4),
                layer_scale=0.5,
                num_classes=5,
            )
        )


def test_queries_of_the_image_are_refused_what_needs_own_ones() -> None:
    model = TestGCViT().make()
    for spec, reason in {
        "bisa": "keys and queries come from different tokens",
        "uniform_heads(value=cb)": "different tokens",
    }.items():
        with pytest.raises(attngraft.HostError, match=rf"stages.0.blocks.1.attn.*{reason}"):
            attngraft.graft(model, spec)
