"""Contract of timm's Qwen3-ViT."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import timm
from torch import nn

from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_vit import NO_CLASS_TOKEN, NO_WINDOWS

pytest.importorskip("timm.models.qwen3_vit", reason="this timm has no Qwen3-ViT")
TINY: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "mlp_ratio": 2.0}


class TestQwen3(HostContract):
    """Half rotation and learned positions; a classifier on the mean of the output tokens."""

    layers = 2
    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN
    specs: ClassVar = ONE_PER_STAGE

    def make(self) -> nn.Module:
        return timm.create_model("qwen3_vit_306m", **TINY, pos_embed_grid_size=6, num_classes=5)


@pytest.mark.slow
class TestQwen3Encoder(TestQwen3):
    """The encoder alone, with the projector for a language model."""

    specs: ClassVar = ONE_PER_STAGE[:2]

    def make(self) -> nn.Module:
        return timm.create_model("qwen3_vit_306m_enc", **TINY, pos_embed_grid_size=4, out_features=10)
