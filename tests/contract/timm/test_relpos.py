"""Contract of timm's ViTs with relative positions."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import timm
from torch import nn

from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_eva import off_zero
from tests.contract.timm.test_vit import NO_CLASS_TOKEN, NO_WINDOWS, TINY


def without_chance(model: nn.Module) -> nn.Module:
    """Disable the dropout in the position MLP."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


class TestRelPos(HostContract):
    """An MLP of log-spaced positions in each block; no class token."""

    layers = 2
    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads"]
    name: ClassVar = "vit_relpos_small_patch16_224"
    extras: ClassVar[dict[str, Any]] = {}

    def make(self) -> nn.Module:
        return off_zero(without_chance(timm.create_model(self.name, **(TINY | self.extras))))


@pytest.mark.slow
class TestRelPosTable(TestRelPos):
    """A table in each block, a class token, post-norm."""

    name = "vit_srelpos_small_patch16_224"
    extras: ClassVar = {"shared_rel_pos": False, "rel_pos_type": "bias", "rel_pos_dim": None}


@pytest.mark.product
class TestSharedRelPos(TestRelPos):
    """One position MLP shared by all blocks."""

    name = "vit_srelpos_small_patch16_224"
