"""Contract of timm's MobileViTs."""

from __future__ import annotations

from typing import Any, ClassVar

from timm.models.byobnet import ByoBlockCfg, ByobNet, ByoModelCfg
from torch import nn

import attngraft
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_vit import NO_CLASS_TOKEN, NO_WINDOWS


def mobilevit(kind: str, **block: Any) -> nn.Module:
    """Return a model with two stages of one block each, on maps of 8 x 8."""
    made = ByoBlockCfg(type=kind, d=1, c=16, s=1, block_kwargs={"transformer_depth": 1, "patch_size": 2, **block})
    config = ByoModelCfg(
        blocks=(made, made), stem_chs=16, stem_type="3x3", stem_pool="", downsample="", act_layer="silu"
    )
    model = ByobNet(config, num_classes=5)
    model.pretrained_cfg = {"input_size": (3, 16, 16), "classifier": "head.fc"}
    return model


class TestMobileVit(HostContract):
    """4 sequences of 16 tokens each."""

    layers = 2
    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN
    specs: ClassVar = ONE_PER_STAGE

    def make(self) -> nn.Module:
        return mobilevit("mobilevit", transformer_dim=24, num_heads=3)


class TestMobileVitV2(HostContract):
    """Linear attention, whose sites have no hook points; MLPs on maps (pixels of a patch, patches)."""

    layers = 2
    refused: ClassVar = {"bisa": "its attention is linear", "horizontal": "its attention is linear"}
    specs: ClassVar = ONE_PER_STAGE[-1:]
    beside: ClassVar = "toy_other(start=0.25, stage='mlp.end')@first:1"

    def make(self) -> nn.Module:
        return mobilevit("mobilevit2", bottle_ratio=1.5)

    def test_recording_changes_nothing_and_sees_the_map(self, host: nn.Module, inputs: Any) -> None:  # type: ignore[override]
        """There is no attention map."""
        with attngraft.record(host) as recording:
            host(*inputs)
        assert recording["stages.0.0.transformer.0.mlp"]["mlp.end"].shape == (2, 64, 24)
