"""Contract of timm's CoaT."""

from __future__ import annotations

from typing import Any, ClassVar

from timm.models.coat import CoaT
from torch import nn

import attngraft
from tests.contract.tester import ONE_PER_STAGE, HostContract


class TestCoat(HostContract):
    """A serial block for each of four maps, then a parallel block of three maps that share an MLP."""

    layers = 7
    mlps = 5
    refused: ClassVar = {"bisa": "its attention is linear", "horizontal": "its attention is linear"}
    specs: ClassVar = [ONE_PER_STAGE[-1], "cb(context=class)"]
    beside: ClassVar = "toy_other(start=0.25, stage='mlp.end')@first:1"
    checkpoints: ClassVar = "around"

    def make(self) -> nn.Module:
        return CoaT(
            img_size=32,
            patch_size=4,
            embed_dims=(8, 16, 16, 16),
            serial_depths=(1, 1, 1, 1),
            parallel_depth=1,
            num_heads=8,
            mlp_ratios=(2, 2, 2, 2),
            num_classes=5,
        )

    def test_recording_changes_nothing_and_sees_the_map(self, host: nn.Module, inputs: Any) -> None:  # type: ignore[override]
        """There is no attention map, and the last input of the shared MLP is the smallest map."""
        with attngraft.record(host) as recording:
            host(*inputs)
        assert recording["serial_blocks1.0.mlp"]["mlp.end"].shape == (2, 65, 8)
        assert recording["parallel_blocks.0.mlp2"]["mlp.end"].shape == (2, 2, 16)
