"""Contract of Hugging Face's ViT and DeiT."""

from __future__ import annotations

import pytest
from torch import nn

from tests.contract.hf.hosts import TINY, TransformersContract


class TestViT(TransformersContract):
    """ViT with a class token, whose layer applies the dropout of both branches."""

    def made(self) -> nn.Module:
        from transformers import ViTConfig, ViTModel

        return ViTModel(ViTConfig(**TINY), add_pooling_layer=False)


@pytest.mark.slow
class TestDeiT(TransformersContract):
    """DeiT with class and distillation token."""

    def made(self) -> nn.Module:
        from transformers import DeiTConfig, DeiTModel

        return DeiTModel(DeiTConfig(**TINY), add_pooling_layer=False)
