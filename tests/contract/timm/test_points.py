"""Contract of BiXT for point clouds."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import timm
from torch import nn

from tests.contract.stirring import stir
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_bixt import SELF, TINY
from tests.contract.timm.test_vit import NO_CLASS_TOKEN, NO_WINDOWS

SIZES = {name: TINY[name] for name in ("num_latents", "embed_dim", "num_heads", "num_classes")} | {"depth": 2}


class TestBixtPoints(HostContract):
    """One bi-directional and one one-sided layer over points."""

    layers = 4
    mlps = 5
    refused: ClassVar = (
        NO_WINDOWS | NO_CLASS_TOKEN | {"ghost": "are not on a grid|queries and keys are different tokens"}
    )
    where: ClassVar = SELF | {"uniform_heads(value=cb)": "blocks.*.self_attention_latents"}
    name: ClassVar = "bixt_points_naive"
    specs: ClassVar = ONE_PER_STAGE
    extras: ClassVar[dict[str, Any]] = {}

    def make(self) -> nn.Module:
        return stir(timm.create_model(self.name, **SIZES, **self.extras), lambda *_: True)


@pytest.mark.slow
class TestBixtPointGroups(TestBixtPoints):
    """With networks on neighborhoods."""

    name: ClassVar = "bixt_points_group"
    extras: ClassVar = {"neighbors": 4}


@pytest.mark.slow
class TestBixtParts(TestBixtPoints):
    """The last layer updates the points."""

    name: ClassVar = "bixt_parts_naive"
    layers = 2 + 1
    mlps = 3 + 1
    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN | {"ghost": "one similarity serves both directions"}
    extras: ClassVar[dict[str, Any]] = {"categories": 3}


@pytest.mark.slow
class TestBixtPartsHierarchy(TestBixtParts):
    """An encoder of fewer and fewer points, and a decoder."""

    name: ClassVar = "bixt_parts_hier"
    extras: ClassVar = {"categories": 3, "neighbors": 4, "reducers": (2, 2), "decoder": (8, 8)}
