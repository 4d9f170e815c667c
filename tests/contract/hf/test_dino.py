"""Contract of Hugging Face's DINOv2 and DINOv3."""

from __future__ import annotations

from typing import ClassVar

import pytest
from torch import nn

from tests.contract.hf.hosts import TINY, TransformersContract, since
from tests.contract.timm.test_eva import NO_MIDDLE

SIZES = {name: value for name, value in TINY.items() if name != "intermediate_size"}


@since("5.20")
class TestDinov2(TransformersContract):
    """DINOv2, with LayerScale after both branches."""

    def made(self) -> nn.Module:
        from transformers import Dinov2Config, Dinov2Model

        return Dinov2Model(Dinov2Config(**SIZES, mlp_ratio=2))


@since("5.20")
@pytest.mark.slow
class TestDinov2WithRegisters(TransformersContract):
    """DINOv2 with registers and gated MLPs."""

    specs: ClassVar = NO_MIDDLE

    def made(self) -> nn.Module:
        from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel

        config = Dinov2WithRegistersConfig(**SIZES, mlp_ratio=2, num_register_tokens=2, use_swiglu_ffn=True)
        return Dinov2WithRegistersModel(config)


class TestDinov3(TransformersContract):
    """DINOv3: rotary positions, registers, key projection without bias."""

    def made(self) -> nn.Module:
        from transformers import DINOv3ViTConfig, DINOv3ViTModel

        return DINOv3ViTModel(DINOv3ViTConfig(**TINY, num_register_tokens=2, layerscale_value=0.5))
