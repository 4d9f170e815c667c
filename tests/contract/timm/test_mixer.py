"""Contract of timm's MLP-Mixer and ResMLP: MLP sites only."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import pytest
from timm.layers import GatedMlp
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock, SpatialGatingBlock
from torch import nn

import attngraft
from tests.contract.tester import GRAFTS, HostContract
from tests.contract.timm.test_eva import off_zero
from tests.contract.timm.test_vit import NO_CLASS_TOKEN

TINY: dict[str, Any] = {"img_size": 24, "patch_size": 8, "embed_dim": 16, "num_blocks": 2, "num_classes": 5}
NO_ATTENTION = dict.fromkeys(
    [
        *(
            spec
            for spec in GRAFTS
            if spec.startswith(("horizontal", "vertical", "bisa", "misa", "uniform_heads", "ghost"))
        ),
        *(spec for spec in GRAFTS if "at=" in spec),
        *("identity", "identity(stage=heads)", "identity(stage='attn.end')", "toy_flatten", "toy_values_only"),
    ],
    "not by attention",
)


class TestMixer(HostContract):
    layers = 0
    mlps = 2
    refused: ClassVar = NO_ATTENTION | NO_CLASS_TOKEN
    beside: ClassVar = "toy_other(start=0.25, stage='mlp.end')@first:1"
    parts: ClassVar[dict[str, Any]] = {}

    def make(self) -> nn.Module:
        model = off_zero(MlpMixer(**TINY, **self.parts))
        nn.init.normal_(model.head.weight, std=0.2)  # initialized to zero
        return model


@pytest.mark.slow
class TestResMlp(TestMixer):
    """Affine norms, layer scale, one linear map over tokens."""

    parts: ClassVar = {"block_layer": partial(ResBlock, init_values=0.5), "norm_layer": Affine, "mlp_ratio": 4}
    specs: ClassVar = ["cb_s(init=1, position=front) + toy_scale(start=0.5, stage='mlp.mid') + se(reduction=2)"]


def test_an_mlp_that_mixes_tokens_too_is_refused() -> None:
    model = MlpMixer(**TINY, block_layer=SpatialGatingBlock, mlp_layer=GatedMlp, mlp_ratio=4)
    with pytest.raises(attngraft.HostError, match="GatedMlp, which mixes tokens too"):
        attngraft.graft(model, "cb")
