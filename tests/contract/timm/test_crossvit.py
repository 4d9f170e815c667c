"""Contract of timm's CrossViT."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import timm
import torch
from torch import nn

import attngraft
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_eva import off_zero
from tests.contract.timm.test_vit import NO_WINDOWS

TINY: dict[str, Any] = {
    "img_size": 48,
    "img_scale": (1.0, 2 / 3),
    "embed_dim": (24, 32),
    "depth": ((1, 2, 0),),
    "num_heads": (2, 2),
    "num_classes": 5,
}


class TestCrossVit(HostContract):
    """Branches of 4 x 4 and 2 x 2 patches; each class token attends to the other branch."""

    layers = 5
    mlps = 3
    refused: ClassVar = NO_WINDOWS
    specs: ClassVar = ONE_PER_STAGE
    where: ClassVar = {"bisa": "blocks.*.blocks"}
    checkpoints = False

    def make(self) -> nn.Module:
        return off_zero(timm.create_model("crossvit_tiny_240", **TINY))


def test_a_single_query_is_refused_what_needs_one_for_each_key() -> None:
    model = TestCrossVit().make()
    with pytest.raises(attngraft.HostError, match=r"blocks.0.fusion.0.attn.*fewer tokens.*other sites"):
        attngraft.graft(model, "bisa")


def test_the_class_token_of_a_branch_asks_the_patches_of_the_other() -> None:
    model = TestCrossVit().make()
    sites = {site.path: site.geometry for site in attngraft.hosts.find_host(model).sites}
    small, large = sites["blocks.0.fusion.0.attn"], sites["blocks.0.fusion.1.attn"]
    assert (small.dim, small.tokens, small.grid) == (32, 5, (2, 2))
    assert (large.dim, large.tokens, large.grid) == (24, 17, (4, 4))


def test_fusion_in_several_blocks_is_found() -> None:
    model = timm.create_model("crossvit_tiny_240", **(TINY | {"depth": ((1, 1, 2),)}))
    paths = [site.path for site in attngraft.hosts.find_host(model).sites]
    assert "blocks.0.fusion.1.1.attn" in paths
    attngraft.graft(model, "horizontal@blocks.*.fusion")
    assert torch.isfinite(model(torch.randn(1, 3, 48, 48))).all()
