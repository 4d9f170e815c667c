"""Contract of timm's EfficientFormer."""

from __future__ import annotations

from typing import ClassVar

from timm.models.efficientformer import Attention, EfficientFormer
from torch import nn

from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_eva import off_zero
from tests.contract.timm.test_vit import NO_CLASS_TOKEN, NO_WINDOWS


class TestEfficientFormer(HostContract):
    """Three pooling blocks and one attention block on 2 x 2 tokens, with values wider than keys."""

    layers = 1
    mlps = 4
    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads"]

    def make(self) -> nn.Module:
        model = EfficientFormer((1, 1, 1, 1), (8, 8, 8, 16), num_vit=1, num_classes=5, layer_scale_init_value=0.5)
        # the model stores no image size
        model.pretrained_cfg = {"input_size": (3, 64, 64), "classifier": ("head", "head_dist")}
        model.stages[3].blocks[1].token_mixer = Attention(16, key_dim=4, num_heads=2, attn_ratio=4, resolution=2)
        return off_zero(model)
