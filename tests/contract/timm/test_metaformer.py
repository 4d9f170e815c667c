"""Contract of timm's MetaFormers."""

from __future__ import annotations

from typing import Any, ClassVar

from timm.models.metaformer import Attention, LayerNorm2dNoBias, LayerNormNoBias, MetaFormer, SepConv
from torch import nn

from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_vit import NO_CLASS_TOKEN, NO_WINDOWS


def metaformer(**parts: Any) -> nn.Module:
    """Return the factory's model for small images."""
    model = MetaFormer(num_classes=5, **parts)
    model.pretrained_cfg = {"input_size": (3, 64, 64), "classifier": "head.fc"}
    return model


class TestCaFormer(HostContract):
    """Two convolutional stages, two attention stages; no biases; MLPs on maps and on tokens."""

    layers = 2
    mlps = 4
    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN
    specs: ClassVar = ONE_PER_STAGE

    def make(self) -> nn.Module:
        return metaformer(
            depths=(1, 1, 1, 1),
            dims=(8, 16, 32, 32),
            token_mixers=[SepConv, SepConv, Attention, Attention],
            norm_layers=[LayerNorm2dNoBias] * 2 + [LayerNormNoBias] * 2,
            head_dim=16,
        )


class TestPoolFormer(HostContract):
    """PoolFormer, which has no attention."""

    layers = 0
    mlps = 2
    specs: ClassVar = ONE_PER_STAGE[-1:]
    refused: ClassVar = {"bisa": "mixes tokens by Pooling", "horizontal": "mixes tokens by Pooling"}
    beside: ClassVar = "toy_other(start=0.25, stage='mlp.end')@first:1"

    def make(self) -> nn.Module:
        return metaformer(depths=(1, 1), dims=(8, 16), mlp_bias=True, layer_scale_init_values=0.5, use_mlp_head=False)
