"""Contract of Hugging Face's Swin."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from tests.contract.hf.hosts import TransformersContract

SIZES = {"image_size": 28, "patch_size": 2, "num_channels": 3, "embed_dim": 12, "window_size": 4, "mlp_ratio": 2.0}


class TestSwin(TransformersContract):
    """Two stages of two blocks, maps of 14 and 7 in padded windows of 4."""

    layers = 4
    refused: ClassVar = {"cb(context=class)": "class token"}

    def made(self) -> nn.Module:
        from transformers import SwinConfig, SwinModel

        config = SwinConfig(**SIZES, depths=[2, 2], num_heads=[2, 4], drop_path_rate=0.0)
        return SwinModel(config, add_pooling_layer=False)
