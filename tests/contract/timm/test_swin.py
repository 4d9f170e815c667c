"""Contract of timm's SwinTransformer."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import timm
from packaging.version import Version
from torch import nn

from tests.contract.tester import GRAFTS, ONE_PER_STAGE, SPACE, SPACE_FORMS, HostContract
from tests.contract.timm.test_eva import off_zero
from tests.contract.timm.test_relpos import without_chance
from tests.contract.timm.test_vit import NO_CLASS_TOKEN

TINY: dict[str, Any] = {
    "window_size": 4,
    "depths": (2, 1),
    "embed_dim": 16,
    "num_heads": (2, 4),
    "num_classes": 5,
    "drop_path_rate": 0.0,
}


class TestSwin(HostContract):
    """Windows, shift, padding (the 7 x 7 map of stage 0 in windows of 4), patch merging."""

    layers = 3
    refused: ClassVar = NO_CLASS_TOKEN
    space: ClassVar = SPACE
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads", "cb(at=attention, scope=window)"]

    def make(self) -> nn.Module:
        return timm.create_model("swin_tiny_patch4_window7_224", img_size=28, **TINY)


@pytest.mark.product
class TestSwinWithEveryGraft(TestSwin):
    """Swin with every graft."""

    specs: ClassVar = GRAFTS
    space: ClassVar = [*SPACE, *SPACE_FORMS]


class TestSwinV2(HostContract):
    """Swin V2: cosine scores, position MLP, post-norm, the same padding."""

    layers = 3
    refused: ClassVar = NO_CLASS_TOKEN
    space: ClassVar = SPACE[:1]
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads", "cb(at=attention, scope=window)"]
    name: ClassVar = "swinv2_tiny_window8_256"

    def make(self) -> nn.Module:
        size = 28 if Version(timm.__version__) > Version("1.0.26") else 32  # that release cannot pad windows
        model = timm.create_model(self.name, img_size=size, **TINY)
        for module in model.modules():
            if isinstance(module, nn.LayerNorm) and module.weight.device.type != "meta":
                nn.init.uniform_(module.weight, 0.5, 1.5)  # post-norms are initialized to zero
        return off_zero(without_chance(model))


@pytest.mark.slow
class TestSwinV2Cr(TestSwinV2):
    """Swin V2-CR: another position MLP; a one-dimensional temperature."""

    name = "swinv2_cr_tiny_ns_224"
