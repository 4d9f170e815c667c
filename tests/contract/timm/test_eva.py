"""Contract of timm's EVA and BEiT."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import timm
from packaging.version import Version
from torch import nn

from tests.contract.stirring import stir
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_vit import NO_WINDOWS, TINY

NO_MIDDLE = [spec.replace("stage='mlp.mid'", "stage='mlp.front'") for spec in ONE_PER_STAGE]


def off_zero(model: nn.Module) -> nn.Module:
    """Perturb biases and tables, which are initialized to zero."""
    return stir(model, lambda name, _: "bias" in name or "gamma" in name)


class TestEva(HostContract):
    """Rotary positions, a class token, q and v biases, gated MLPs with a norm."""

    layers = 2
    refused: ClassVar = NO_WINDOWS
    specs: ClassVar = NO_MIDDLE
    name: ClassVar = "eva02_tiny_patch14_224"
    extras: ClassVar[dict[str, Any]] = {}

    def make(self) -> nn.Module:
        return off_zero(timm.create_model(self.name, **(TINY | self.extras)))


@pytest.mark.slow
class TestRopeMixed(TestEva):
    """Learned rotations per head, no class token, pre-norm."""

    name = "vit_small_patch16_rope_mixed_224"
    specs: ClassVar = ONE_PER_STAGE
    runs_in_bf16 = Version(timm.__version__) > Version("1.0.26")  # the host itself cannot run in bfloat16


@pytest.mark.slow
class TestEvaSeparate(TestEva):
    """Three projections, registers, output norm."""

    extras: ClassVar = {"qkv_fused": False, "scale_attn_inner": True}


@pytest.mark.slow
class TestDinoV3(TestEva):
    """Fused projection without bias, four registers, LayerScale."""

    name = "vit_small_patch16_dinov3"
    specs: ClassVar = ONE_PER_STAGE


class TestBeit(TestEva):
    """A table of relative positions in each block."""

    name = "beit_base_patch16_224"
    specs: ClassVar = ONE_PER_STAGE
