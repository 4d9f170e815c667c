"""Contract of timm's Twins."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from timm.models.twins import Twins
from torch import nn

import attngraft
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_eva import off_zero
from tests.contract.timm.test_vit import NO_CLASS_TOKEN

TINY: dict[str, Any] = {
    "img_size": 40,
    "embed_dims": (16, 24),
    "num_heads": (2, 3),
    "depths": (2, 2),
    "sr_ratios": (4, 1),
    "num_classes": 5,
}


class TestTwinsSVT(HostContract):
    """10 x 10 patches in padded windows of 4, then with 2 x 2 keys; 5 x 5 in windows of 4, then with all keys."""

    layers = 4
    refused: ClassVar = NO_CLASS_TOKEN
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads", "cb(at=attention, scope=window)"]
    where: ClassVar = {"bisa": "blocks.0.0,blocks.1"}
    checkpoints = False
    windows: ClassVar[Any] = (4, 4)

    def make(self) -> nn.Module:
        return off_zero(Twins(**TINY, wss=self.windows))


@pytest.mark.slow
class TestTwinsPCPVT(TestTwinsSVT):
    """Twins-PCPVT, without windows."""

    refused: ClassVar = NO_CLASS_TOKEN | {"cb(at=attention, scope=window)": "no windows"}
    specs: ClassVar = ONE_PER_STAGE
    where: ClassVar = {"bisa": "blocks.1"}
    windows: ClassVar = None


def test_reduced_keys_are_refused_what_needs_one_for_each_query() -> None:
    model = TestTwinsSVT().make()
    with pytest.raises(attngraft.HostError, match=r"blocks.0.1.attn.*key side has fewer tokens.*other sites"):
        attngraft.graft(model, "bisa")
    with pytest.raises(attngraft.HostError, match=r"blocks.0.1.attn.*queries and keys are different tokens"):
        attngraft.graft(model, "uniform_heads(value=cb)")


@torch.no_grad()
def test_zeros_that_fill_up_windows_take_no_part_in_the_inverse_branch() -> None:
    model = TestTwinsSVT().make().eval()
    attngraft.graft(model, "misa@blocks.0.0")
    attn = model.blocks[0][0].attn
    tokens = torch.randn(1, 100, 16)
    alone = attn(tokens.unflatten(1, (10, 10))[:, 8:, 8:].flatten(1, 2), (2, 2))
    within = attn(tokens, (10, 10)).unflatten(1, (10, 10))[:, 8:, 8:].flatten(1, 2)
    torch.testing.assert_close(within, alone)
    attn.ws = 2  # the same four tokens without padding
    torch.testing.assert_close(attn(tokens.unflatten(1, (10, 10))[:, 8:, 8:].flatten(1, 2), (2, 2)), alone)
