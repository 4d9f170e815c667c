"""Contract of torchvision's SwinTransformer, V1 and V2,."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from torch import nn
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

from tests.contract.tester import ONE_PER_STAGE, HostContract

SMALL: dict[str, Any] = {
    "patch_size": [2, 2],
    "embed_dim": 16,
    "depths": [2, 1],
    "num_heads": [2, 4],
    "window_size": [3, 3],
    "stochastic_depth_prob": 0.0,
    "num_classes": 5,
}


class TestSwin(HostContract):
    """Swin: shifted windows, a table of positions."""

    layers = 3
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads", "cb(at=attention, scope=window)", "cb_gate"]
    refused: ClassVar = {"cb_gate": "class token"}
    checkpoints = "around"

    def make(self) -> nn.Module:
        return SwinTransformer(**SMALL)


@pytest.mark.slow
class TestSwinV2(TestSwin):
    """Swin V2: cosine scores, position MLP, post-norm."""

    def make(self) -> nn.Module:
        return SwinTransformer(**SMALL, block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2)
