"""Contract of timm's ViTs with a convolutional stem: hybrids and ViTamin."""

from __future__ import annotations

from typing import ClassVar

import timm
from timm.models.vitamin import GeGluMlp, VitCfg, _create_vitamin
from torch import nn

from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_eva import NO_MIDDLE
from tests.contract.timm.test_vit import NO_CLASS_TOKEN, NO_WINDOWS


class TestHybrid(HostContract):
    """A ResNet stem, then patches."""

    layers = 2
    refused: ClassVar = NO_WINDOWS
    specs: ClassVar = ONE_PER_STAGE

    def make(self) -> nn.Module:
        return timm.create_model(
            "vit_tiny_r_s16_p8_224", img_size=64, embed_dim=24, depth=2, num_heads=3, num_classes=5
        )


class TestVitamin(HostContract):
    """Convolutional stages, then gated MLPs with an input norm."""

    layers = 2
    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN
    specs: ClassVar = NO_MIDDLE

    def make(self) -> nn.Module:
        return _create_vitamin(
            "vitamin_small_224",
            embed_cfg=VitCfg(embed_dim=(8, 8, 24), depths=(1, 1, 1), stem_width=8),
            img_size=32,
            embed_dim=24,
            depth=2,
            num_heads=3,
            mlp_layer=GeGluMlp,
            mlp_ratio=2.0,
            class_token=False,
            global_pool="avg",
            num_classes=5,
        )
