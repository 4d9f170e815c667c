"""Contract of timm's PiT."""

from __future__ import annotations

from typing import ClassVar

import timm
from torch import nn

from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_vit import NO_WINDOWS


class TestPit(HostContract):
    """Two stages, pooling between them, class and distillation token."""

    layers = 3
    refused: ClassVar = NO_WINDOWS
    specs: ClassVar = ONE_PER_STAGE
    checkpoints = False

    def make(self) -> nn.Module:
        return timm.create_model(
            "pit_ti_distilled_224",
            img_size=32,
            patch_size=8,
            stride=8,
            base_dims=(8, 8),
            depth=(2, 1),
            heads=(2, 4),
            num_classes=5,
        )
