"""Contract of timm's HieraDet."""

from __future__ import annotations

from typing import ClassVar

import torch
from timm.models.hieradet_sam2 import HieraDet
from torch import nn

import attngraft
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_vit import NO_CLASS_TOKEN


class TestHieraDet(HostContract):
    """6 x 6 in zero-padded windows of 4, without and with pooled queries; 3 x 3 in windows of 2, and globally."""

    layers = 4
    refused: ClassVar = NO_CLASS_TOKEN
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads", "cb(at=attention, scope=window)"]
    where: ClassVar = {"bisa": "blocks.0,blocks.2-3", "cb(at=attention, scope=window)": "blocks.0-2"}

    def make(self) -> nn.Module:
        model = HieraDet(
            embed_dim=8,
            num_heads=1,
            stages=(1, 3),
            q_pool=1,
            window_spec=(4, 2),
            global_att_blocks=(3,),
            global_pos_size=(6, 6),
            patch_kernel=(3, 3),
            patch_stride=(2, 2),
            patch_padding=(1, 1),
            num_classes=5,
        )
        model.pretrained_cfg = {"input_size": (3, 12, 12), "classifier": "head.fc"}  # no image size in the model
        model.pos_embed_window = nn.Parameter(model.pos_embed_window[..., :3, :3])  # which tiles the map
        nn.init.normal_(model.head.fc.weight, std=0.1)  # initialized to zero
        return model


@torch.no_grad()
def test_zeros_that_fill_up_windows_take_no_part_in_the_inverse_branch() -> None:
    host = TestHieraDet().make().eval()
    attngraft.graft(host, "misa@blocks.0")
    block, calls = host.blocks[0], []
    block.attn.register_forward_hook(lambda module, given, output: calls.append((given, output)))
    block(torch.randn(1, 6, 6, 8))
    (windows, present), output = calls[0]
    assert present.sum(1).tolist() == [16, 8, 8, 4]
    shown = present.view(4, 4, 4, 1)
    others = torch.where(shown, windows, torch.tensor(3.0))
    torch.testing.assert_close(block.attn(others, present) * shown, output * shown)
