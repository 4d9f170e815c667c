"""timm's SwinTransformer under the contract."""

from __future__ import annotations

from typing import ClassVar

import timm
from torch import nn

from tests.contract.tester import HostContract
from tests.contract.timm.test_vit import NO_CLASS_TOKEN


class TestSwin(HostContract):
    """Windows, shift, padding (the 7 x 7 map of stage 0 in windows of 4), patch merging."""

    layers = 3
    refused: ClassVar = NO_CLASS_TOKEN

    def make(self) -> nn.Module:
        return timm.create_model(
            "swin_tiny_patch4_window7_224",
            img_size=28,
            window_size=4,
            depths=(2, 1),
            embed_dim=16,
            num_heads=(2, 4),
            num_classes=5,
            drop_path_rate=0.0,
        )
