"""Contract of timm's Visformer."""

from __future__ import annotations

from typing import ClassVar

import timm
from torch import nn

from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_vit import NO_CLASS_TOKEN, NO_WINDOWS


class TestVisformer(HostContract):
    """A convolutional stage, then two attention stages on maps of 4 x 4 and 2 x 2."""

    layers = 2
    mlps = 3
    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN
    specs: ClassVar = ONE_PER_STAGE

    def make(self) -> nn.Module:
        return timm.create_model(
            "visformer_tiny", img_size=64, init_channels=8, embed_dim=32, depth=(1, 1, 1), num_heads=2, num_classes=5
        )
