"""Contract of timm's FastViT."""

from __future__ import annotations

from typing import ClassVar

from timm.models.fastvit import FastVit
from torch import nn

from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_vit import NO_CLASS_TOKEN, NO_WINDOWS


class TestFastVit(HostContract):
    """A convolutional stage, then an attention stage on maps of 4 x 4."""

    layers = 2
    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN
    specs: ClassVar = ONE_PER_STAGE

    def make(self) -> nn.Module:
        model = FastVit(
            layers=(1, 2),
            token_mixers=("repmixer", "attention"),
            embed_dims=(16, 64),
            mlp_ratios=(2, 2),
            downsamples=(False, True),
            se_downsamples=(False, False),
            pos_embs=(None, None),
            layer_scale_init_value=0.5,
            num_classes=5,
        )
        model.pretrained_cfg = {"input_size": (3, 32, 32), "classifier": "head.fc"}
        return model
