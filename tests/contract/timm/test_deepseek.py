"""Contract of timm's DeepSeek-ViT."""

from __future__ import annotations

from typing import ClassVar

import pytest
import timm
from torch import nn

from tests.contract.tester import HostContract
from tests.contract.timm.test_eva import NO_MIDDLE
from tests.contract.timm.test_qwen3 import TINY
from tests.contract.timm.test_vit import NO_CLASS_TOKEN, NO_WINDOWS

pytest.importorskip("timm.models.deepseek_vit", reason="this timm has no DeepSeek-ViT")


class TestDeepseek(HostContract):
    """Half rotation, gated MLPs without biases; an aligner and a classifier after the encoder."""

    layers = 2
    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN
    specs: ClassVar = NO_MIDDLE

    def make(self) -> nn.Module:
        return timm.create_model("deepseek_vit_412m_align", **TINY, out_features=10, num_classes=5)
