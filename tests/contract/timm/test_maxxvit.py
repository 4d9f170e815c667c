"""Contract of timm's MaxViT and CoAtNet."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from timm.models.maxxvit import MaxxVit, MaxxVitCfg, MaxxVitTransformerCfg
from torch import nn

from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_eva import off_zero
from tests.contract.timm.test_relpos import without_chance
from tests.contract.timm.test_vit import NO_CLASS_TOKEN, NO_WINDOWS


class TestCoAtNet(HostContract):
    """A convolution, then attention over whole 4 x 4 maps, pooled before the first block; rows are q, k, v per head."""

    layers = 2
    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads"]
    blocks: ClassVar[Any] = ("C", "T")
    widths: ClassVar = (16, 16)
    attention: ClassVar[dict[str, Any]] = {"rel_pos_type": "bias"}

    def make(self) -> nn.Module:
        transformer = MaxxVitTransformerCfg(dim_head=8, window_size=(2, 2), grid_size=(2, 2), **self.attention)
        cfg = MaxxVitCfg(
            embed_dim=self.widths, depths=(1, 2), block_type=self.blocks, stem_width=8, transformer_cfg=transformer
        )
        return off_zero(without_chance(MaxxVit(cfg, img_size=32, num_classes=5)))


@pytest.mark.slow
class TestCoAtNetByRole(TestCoAtNet):
    """Rows of q, then k, then v; relative positions through an MLP; LayerScale."""

    attention: ClassVar = {"rel_pos_type": "mlp", "rel_pos_dim": 8, "head_first": False, "init_values": 0.5}


@pytest.mark.slow
class TestMaxVit(TestCoAtNet):
    """Windows, then grids, of 2 x 2, in three blocks; tables as in TensorFlow."""

    layers = 6
    refused: ClassVar = NO_CLASS_TOKEN
    specs: ClassVar = [*ONE_PER_STAGE, "cb(at=attention, scope=window)"]
    blocks: ClassVar = ("M", "M")
    attention: ClassVar = {"rel_pos_type": "bias_tf"}


@pytest.mark.product
class TestMaxVitMaps(TestMaxVit):
    """MaxViT on channels-first maps."""

    attention: ClassVar = {"rel_pos_type": "bias", "use_nchw_attn": True}


@pytest.mark.product
class TestParallelMaxVit(TestMaxVit):
    """Windows and grids side by side, each with half of the width."""

    places_known = False
    mlps = 3
    refused: ClassVar = NO_CLASS_TOKEN
    specs: ClassVar = [spec.replace("cb(at=both)", "cb") for spec in TestMaxVit.specs]
    blocks: ClassVar = ("PM", "PM")
    widths: ClassVar = (32, 64)  # with fewer channels the only hidden unit of `vertical` may be inactive
