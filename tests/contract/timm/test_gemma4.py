"""Contract of timm's Gemma4-ViT, and padded batches."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import timm
import torch
from torch import Tensor, nn

import attngraft
from attngraft.errors import UsageError
from tests.contract.tester import HostContract, randomize
from tests.contract.timm.test_eva import NO_MIDDLE
from tests.contract.timm.test_vit import NO_CLASS_TOKEN, NO_WINDOWS

pytest.importorskip("timm.models.gemma4_vit", reason="this timm has no Gemma4-ViT")
TINY: dict[str, Any] = {
    "patch_size": 8,
    "embed_dim": 24,
    "depth": 2,
    "num_heads": 2,
    "head_dim": 16,
    "intermediate_size": 32,
    "position_embedding_size": 8,
}


class TestGemma4(HostContract):
    """Heads wider than the model; norms of q, k and v; gated MLPs."""

    layers = 2
    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN
    specs: ClassVar = NO_MIDDLE

    def make(self) -> nn.Module:
        return small(timm.create_model("gemma4_vit_167m", **TINY, num_classes=5))


@pytest.mark.slow
class TestGemma4Encoder(TestGemma4):
    """The encoder alone: two heads share keys and values, projections are clipped, pooling as for a language model."""

    specs: ClassVar = NO_MIDDLE[:2]

    def make(self) -> nn.Module:
        shared = {"num_kv_heads": 1, "use_clipped_linears": True, "pooling_kernel_size": 2}
        return small(timm.create_model("gemma4_vit_167m_enc", **TINY, **shared))


def small(model: nn.Module) -> nn.Module:
    """Return a model for images of 2 x 2 patches."""
    model.pretrained_cfg = {"input_size": (3, 16, 16), "classifier": "head"}
    return model


def with_padding(*, fill: float) -> dict[str, Tensor]:
    """Return an image of 2 x 2 patches and one of 1 x 2, padded with patches of this value."""
    patches = torch.rand(2, 4, 8 * 8 * 3, generator=torch.Generator().manual_seed(6))
    coordinates = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]).repeat(2, 1, 1)
    patches[1, 2:], coordinates[1, 2:] = fill, -1
    return {"patches": patches, "patch_coord": coordinates}


@torch.no_grad()
def test_padding_takes_no_part_or_is_refused() -> None:
    torch.manual_seed(1)
    host = TestGemma4().make().eval()
    plain = host(with_padding(fill=0.0))
    for spec in ("bisa", "cb_s(init=1)", "cb(at=attention)"):
        attngraft.graft(host, spec)
        host(torch.rand(2, 3, 16, 16))
        with pytest.raises(UsageError, match="padding mask"):
            host(with_padding(fill=0.0))
        attngraft.ungraft(host)
    attngraft.graft(host, "horizontal + vertical")
    randomize(host, only_grafts=True)
    found = host(with_padding(fill=0.0))
    assert not torch.equal(found, plain)
    torch.testing.assert_close(host(with_padding(fill=1.0)), found)
