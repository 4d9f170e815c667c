"""Hugging Face's ViT and DeiT under the contract."""

from __future__ import annotations

import pytest
from torch import nn

from tests.contract.hf.hosts import TINY, TransformersContract


class TestViT(TransformersContract):
    """Class token; the layer ends both branches."""

    def made(self) -> nn.Module:
        from transformers import ViTConfig, ViTModel

        return ViTModel(ViTConfig(**TINY), add_pooling_layer=False)


@pytest.mark.slow
class TestDeiT(TransformersContract):
    """Class and distillation token."""

    def made(self) -> nn.Module:
        from transformers import DeiTConfig, DeiTModel

        return DeiTModel(DeiTConfig(**TINY), add_pooling_layer=False)
