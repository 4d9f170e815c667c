"""Contract of timm's PVT v2."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import timm
from torch import nn

from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_eva import off_zero
from tests.contract.timm.test_vit import NO_CLASS_TOKEN, NO_WINDOWS

TINY: dict[str, Any] = {
    "embed_dims": (16, 24),
    "num_heads": (2, 3),
    "depths": (1, 2),
    "sr_ratios": (4, 1),
    "mlp_ratios": (4, 2),
    "num_classes": 5,
}


class TestPvtV2(HostContract):
    """A block with subsampled keys, two with all keys."""

    layers = 3
    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads"]
    where: ClassVar = {"bisa": "stages.1"}
    name: ClassVar = "pvt_v2_b0"

    def make(self) -> nn.Module:
        model = off_zero(timm.create_model(self.name, **TINY))
        model.pretrained_cfg = {**model.pretrained_cfg, "input_size": (3, 32, 32)}  # no image size in the model
        return model


@pytest.mark.slow
class TestPvtV2Linear(TestPvtV2):
    """PVT v2 linear: every block has 7 x 7 pooled keys."""

    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN | {"bisa(learned=true, norm=true)": "key side has fewer tokens"}
    name = "pvt_v2_b2_li"
