"""Contract of timm's NextViT."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, ClassVar

import torch
from timm.layers import ClassifierHead
from timm.models.nextvit import ConvNormAct, NextConvBlock, NextStage, NextTransformerBlock, NextViT
from torch import nn

from attngraft.models.schemes import build_anywhere
from tests.contract.stirring import stir
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_vit import NO_CLASS_TOKEN, NO_WINDOWS


@cache
def _shell() -> nn.Module:
    """Return a model without blocks, whose fixed widths are large."""
    with torch.device("meta"):
        model = build_anywhere(lambda: NextViT(3, num_classes=5, depths=(1, 1, 5, 1)))
    model.stem, model.stages = nn.Identity(), nn.Sequential()
    return model


class TestNextViT(HostContract):
    """A convolutional block, one with pooled keys, then one with all keys."""

    layers = 2
    mlps = 3
    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads"]
    where: ClassVar = {"bisa": "stages.1"}

    def make(self) -> nn.Module:
        model: Any = copy.deepcopy(_shell())
        shared: dict[str, Any] = {"stride": 1, "head_dim": 16}
        model.stem = ConvNormAct(3, 8, kernel_size=3, stride=2, norm_layer=nn.BatchNorm2d, act_layer=nn.ReLU)
        model.stages = nn.Sequential(
            NextStage(8, [16, 64], [NextConvBlock, NextTransformerBlock], sr_ratio=2, mix_block_ratio=0.5, **shared),
            NextStage(64, [64], [NextTransformerBlock], mix_block_ratio=0.5, **shared),
        )
        model.norm, model.head = nn.BatchNorm2d(64), ClassifierHead(64, 5)
        model.pretrained_cfg = {"input_size": (3, 16, 16), "classifier": "head.fc"}  # no image size in the model
        return stir(model, lambda name, parameter: True, by=0.1, seed=7)
