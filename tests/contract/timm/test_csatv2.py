"""Contract of timm's CSATv2."""

from __future__ import annotations

from typing import ClassVar

import pytest
import timm
from packaging.version import Version
from torch import nn

import attngraft
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_vit import NO_CLASS_TOKEN

csatv2 = pytest.importorskip("timm.models.csatv2", reason="this timm has no CSATv2")


class TestCsatV2(HostContract):
    """A convolutional block with attention within one channel, and a transformer block."""

    layers = 2
    mlps = 1
    refused: ClassVar = NO_CLASS_TOKEN | {"cb(at=attention, scope=window)": "hook point attn.window"}
    specs: ClassVar = ONE_PER_STAGE
    where: ClassVar = {"bisa": "stages.1"}
    makes_meta = Version(timm.__version__) > Version("1.0.26")  # the host itself cannot be created there

    def make(self) -> nn.Module:
        model = csatv2.CSATv2(dims=(16, 32), depths=(1, 1), transformer_depths=(0, 1), num_classes=5)
        model.pretrained_cfg = {"input_size": (3, 32, 32), "classifier": "head.fc"}  # no image size in the model
        return model


def test_the_attention_of_one_channel_is_refused_with_the_reason() -> None:
    with pytest.raises(attngraft.GraftSpecError, match="pixels of a single channel.*choose transformer blocks"):
        attngraft.graft(TestCsatV2().make(), "horizontal@stages.0")
