"""Contract of timm's TNT."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import timm
from torch import nn

from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_vit import NO_WINDOWS


class TestTnt(HostContract):
    """4 patches of 4 pixels each, two transformers per block."""

    layers = 2
    refused: ClassVar = NO_WINDOWS
    specs: ClassVar = [*ONE_PER_STAGE, "cb_gate"]
    where: ClassVar = {"cb_gate": "blocks.0.mlp"}
    extras: ClassVar[dict[str, Any]] = {}

    def make(self) -> nn.Module:
        return timm.create_model(
            "tnt_s_patch16_224",
            img_size=16,
            patch_size=8,
            first_stride=4,
            embed_dim=24,
            inner_dim=8,
            depth=1,
            num_heads_inner=2,
            num_heads_outer=3,
            num_classes=5,
            **self.extras,
        )


@pytest.mark.slow
class TestLegacyTnt(TestTnt):
    """The order of norm and unfolding in older weights."""

    specs: ClassVar = ONE_PER_STAGE[:1]
    extras: ClassVar = {"legacy": True}
