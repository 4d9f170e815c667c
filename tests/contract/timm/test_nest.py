"""Contract of timm's NesT."""

from __future__ import annotations

from typing import ClassVar

import torch
from timm.models.nest import Nest, deblockify
from torch import nn

import attngraft
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_eva import off_zero
from tests.contract.timm.test_vit import NO_CLASS_TOKEN


class TestNest(HostContract):
    """A map of 8 x 8 in four blocks, then 4 x 4 in one block."""

    layers = 3
    puts_back = False
    refused: ClassVar = NO_CLASS_TOKEN
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads", "cb(at=attention, scope=window)"]

    def make(self) -> nn.Module:
        return off_zero(
            Nest(
                img_size=16,
                patch_size=2,
                num_levels=2,
                embed_dims=(16, 24),
                num_heads=(2, 3),
                depths=(1, 2),
                drop_path_rate=0.0,
                num_classes=5,
            )
        )


@torch.no_grad()
def test_context_of_an_image_and_of_a_block() -> None:
    model, tokens = TestNest().make().eval(), torch.randn(1, 4, 16, 16)
    attn = model.levels[0].transformer_encoder[0].attn
    plain = attn(tokens)
    for scope, axes in (("image", (1, 2)), ("window", 2)):
        attngraft.graft(model, f"cb(at=attention, scope={scope})@levels.0")
        torch.testing.assert_close(attn(tokens), (plain + plain.mean(axes, keepdim=True)) / 2)
        attngraft.ungraft(model)


@torch.no_grad()
def test_blocks_stand_on_the_map_where_the_host_cut_them() -> None:
    model = TestNest().make().eval()
    with attngraft.record(model, {"attn.end"}, sites="levels.0") as recording:
        model(torch.randn(2, 3, 16, 16))
    (site,) = recording
    blocks = recording[site]["attn.end"]
    places = recording.token_indices(site)
    assert torch.equal(blocks.flatten(1, 2)[:, places], deblockify(blocks, 4))
