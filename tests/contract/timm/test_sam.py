"""Contract of timm's SAM image encoder."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import timm
import torch
from torch import nn

import attngraft
from tests.contract.stirring import stir
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_vit import NO_CLASS_TOKEN


class TestSam(HostContract):
    """Zero-padded windows of 2 x 2 on a map of 3 x 3, then a global block; relative positions."""

    layers = 2
    refused: ClassVar = NO_CLASS_TOKEN
    specs: ClassVar = [*ONE_PER_STAGE, "cb(at=attention, scope=window)"]
    where: ClassVar = {"cb(at=attention, scope=window)": "blocks.0"}
    extras: ClassVar[dict[str, Any]] = {"use_rel_pos": True}

    def make(self) -> nn.Module:
        model = timm.create_model(
            "samvit_base_patch16",
            img_size=24,
            patch_size=8,
            embed_dim=24,
            depth=2,
            num_heads=3,
            num_classes=5,
            window_size=2,
            global_attn_indexes=(1,),
            neck_chans=8,
            **self.extras,
        )
        return stir(model, lambda name, _: "rel_pos" in name)  # positions are initialized to zero


@pytest.mark.slow
class TestSamScaled(TestSam):
    """No relative positions; LayerScale; norms of queries and keys."""

    puts_back = False
    specs: ClassVar = ONE_PER_STAGE[:2]
    extras: ClassVar = {"use_rel_pos": False, "init_values": 0.5, "qk_norm": True}


@torch.no_grad()
def test_zeros_that_fill_up_windows_take_no_part_in_the_inverse_branch() -> None:
    torch.manual_seed(1)
    host = TestSam().make().eval()
    attngraft.graft(host, "misa@blocks.0")
    block, calls = host.blocks[0], []
    block.attn.register_forward_hook(lambda module, given, output: calls.append((given, output)))
    block(torch.randn(1, 3, 3, 24))
    (windows, present), output = calls[0]
    assert present.tolist() == [[True] * 4, [True, False] * 2, [True, True, False, False], [True, False, False, False]]
    others = torch.where(present.view(4, 2, 2, 1), windows, torch.tensor(3.0))
    torch.testing.assert_close(block.attn(others, present).flatten(1, 2)[present], output.flatten(1, 2)[present])
    assert not torch.allclose(block.attn(others).flatten(1, 2)[present], output.flatten(1, 2)[present])
