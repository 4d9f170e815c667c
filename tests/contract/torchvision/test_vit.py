"""Contract of torchvision's VisionTransformer."""

from __future__ import annotations

from typing import ClassVar

from torch import nn
from torchvision.models.vision_transformer import VisionTransformer

from tests.contract.tester import ONE_PER_STAGE, HostContract


class TestViT(HostContract):
    """ViT with a class token and a two-layer head."""

    layers = 2
    specs: ClassVar = [*ONE_PER_STAGE, "cb_gate(tokens=patches)", "cb(at=attention, scope=window)"]
    refused: ClassVar = {"cb(at=attention, scope=window)": "no windows"}
    checkpoints = "around"

    def make(self) -> nn.Module:
        model = VisionTransformer(
            image_size=16, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=24, num_classes=5
        )
        if model.class_token.device.type != "meta":
            nn.init.normal_(model.heads.head.weight)  # initialized to zero
        return model
