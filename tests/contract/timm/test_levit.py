"""Contract of timm's LeViT: as tokens, as maps, distilled."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import timm
from timm.models.levit import Attention, ConvNorm, LinearNorm, NormLinear
from torch import nn

import attngraft
from tests.contract.tester import GRAFTS, ONE_PER_STAGE, HostContract
from tests.contract.timm.test_vit import NO_CLASS_TOKEN, NO_WINDOWS

TINY: dict[str, Any] = {
    "img_size": 48,
    "stem_type": "s16",
    "embed_dim": (16, 24),
    "key_dim": 4,
    "depth": (1, 1),
    "num_heads": (2, 3),
    "num_classes": 5,
    "drop_path_rate": 0.0,
}


def unlike_at_first(model: nn.Module) -> nn.Module:
    """Perturb weights and batch-norm statistics, because a new LeViT's branches return zero."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
        if isinstance(module, ConvNorm | LinearNorm | NormLinear):  # torch's default would nearly erase the images
            nn.init.kaiming_normal_(module.linear.weight, nonlinearity="linear")
        if hasattr(module, "attention_biases"):
            nn.init.normal_(module.attention_biases, std=0.5)
    return model


#: older LeViT does not store the size of its maps
SUPPORTED = hasattr(Attention, "init_non_persistent_buffers")


@pytest.mark.skipif(not SUPPORTED, reason="LeViT requires timm 1.0.23 or later")
class TestLevit(HostContract):
    """Tokens; a 3 x 3 map, subsampled to 2 x 2 after the first stage."""

    layers = 3
    name: ClassVar = "levit_256d"
    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN
    where: ClassVar = dict.fromkeys(("uniform_heads(value=cb)", "bisa", "misa", "ghost"), "stages.*.blocks")
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads(value=cb)"]

    def make(self) -> nn.Module:
        return unlike_at_first(timm.create_model(self.name, **TINY))


@pytest.mark.slow
class TestLevitConv(TestLevit):
    """Maps; the slow tests use every graft."""

    name = "levit_conv_256d"
    specs: ClassVar = ONE_PER_STAGE


@pytest.mark.slow
class TestLevitDistilled(TestLevitConv):
    """Two heads, whose outputs are averaged."""

    name = "levit_128s"


@pytest.mark.product
class TestLevitWithEveryGraft(TestLevit):
    """Tokens."""

    specs: ClassVar = GRAFTS


@pytest.mark.product
class TestLevitConvWithEveryGraft(TestLevitWithEveryGraft):
    """Maps."""

    name = "levit_conv_256d"


def test_what_needs_a_square_map_is_refused_where_tokens_are_subsampled() -> None:
    model = TestLevit().make()
    for spec, reason in {
        "uniform_heads(value=cb)": "queries and keys are different tokens",
        "bisa": "subsampled",
    }.items():
        with pytest.raises(attngraft.HostError, match=f"stages.1.downsample.attn_downsample.*{reason}.*other"):
            attngraft.graft(model, spec)
