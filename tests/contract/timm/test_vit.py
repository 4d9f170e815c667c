"""Contract of timm's VisionTransformer and DeiT."""

from __future__ import annotations

from typing import ClassVar

import pytest
import timm
from torch import nn

from tests.contract.tester import GRAFTS, ONE_PER_STAGE, HostContract

NO_WINDOWS: dict[str, str] = {"cb(at=attention, scope=window)": "no windows"}
NO_CLASS_TOKEN: dict[str, str] = {
    "cb(context=class)": "class token",
    "cb_gate": "class token",
    "cb_hybrid": "class token",
}
TINY = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}


class TestViT(HostContract):
    """ViT with a class token, as in DeiT."""

    layers = 2
    refused: ClassVar = NO_WINDOWS
    where: ClassVar = {"ghost": "blocks.0"}  # only the class token of the last block is used, and it is not on the grid

    def make(self) -> nn.Module:
        return timm.create_model("vit_tiny_patch16_224", **TINY)


@pytest.mark.slow
class TestViTWithRegisters(HostContract):
    """No class token, registers, qk-norm, output norm, LayerScale, average pooling; the product tests use every graft."""

    layers = 2
    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN
    specs: ClassVar = [*ONE_PER_STAGE, "cb(tokens=patches)", "uniform_heads(value=cb)"]

    def make(self) -> nn.Module:
        extras = {"class_token": False, "reg_tokens": 2, "global_pool": "avg", "qk_norm": True, "init_values": 0.5}
        return timm.create_model("vit_tiny_patch16_224", **TINY, **extras, scale_attn_norm=True)


class TestDistilledDeiT(HostContract):
    """Class and distillation token; the product tests use every graft."""

    layers = 2
    refused: ClassVar = NO_WINDOWS
    specs: ClassVar = [*ONE_PER_STAGE, "cb(tokens=patches)", "cb(context=class)", "cb_gate"]

    def make(self) -> nn.Module:
        return timm.create_model("deit_tiny_distilled_patch16_224", **TINY)


@pytest.mark.product
class TestViTWithRegistersAndEveryGraft(TestViTWithRegisters):
    specs: ClassVar = GRAFTS


@pytest.mark.product
class TestDistilledDeiTWithEveryGraft(TestDistilledDeiT):
    specs: ClassVar = GRAFTS
    where: ClassVar = TestViT.where
