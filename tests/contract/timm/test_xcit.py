"""Contract of timm's XCiT."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import timm
from torch import nn

import attngraft
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_eva import off_zero

TINY: dict[str, Any] = {"img_size": 32, "embed_dim": 16, "num_heads": 2, "depth": 2, "num_classes": 5}


class TestXcit(HostContract):
    """Two cross-covariance blocks on 4 x 4 patches, then two class-attention blocks."""

    layers = 4
    refused: ClassVar = {
        "cb(at=attention, scope=window)": "between channels",
        "bisa(learned=true, norm=true)": "so its softmax is not over tokens|fewer tokens",
    }
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads"]

    def make(self) -> nn.Module:
        return off_zero(timm.create_model("xcit_nano_12_p8_224", **TINY))


def test_attention_between_channels_is_refused_with_the_reason() -> None:
    for spec in ("horizontal", "vertical", "bisa", "cb(at=attention)"):
        with pytest.raises(attngraft.GraftSpecError, match=r"not over tokens; choose .*cls_attn_blocks.*MLP grafts"):
            attngraft.graft(TestXcit().make(), f"{spec}@blocks")
