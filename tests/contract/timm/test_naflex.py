"""Contract of timm's NaFlexVit, and dictionaries of patches."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg
from torch import Tensor, nn

import attngraft
from attngraft.errors import UsageError
from tests.contract.tester import ONE_PER_STAGE, HostContract, randomize
from tests.contract.timm.test_vit import NO_CLASS_TOKEN, NO_WINDOWS


class TestNaFlex(HostContract):
    """Four registers, average pooling."""

    layers = 2
    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN
    specs: ClassVar = ONE_PER_STAGE
    extras: ClassVar[dict[str, Any]] = {"reg_tokens": 4, "global_pool": "avg"}

    def make(self) -> nn.Module:
        sizes = {"pos_embed_grid_size": None, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
        return NaFlexVit(NaFlexVitCfg(**sizes, **self.extras), img_size=16, num_classes=5)


@pytest.mark.slow
class TestNaFlexRotary(TestNaFlex):
    """Learned rotations, a class token, attention pooling after the blocks."""

    refused: ClassVar = NO_WINDOWS
    specs: ClassVar = ONE_PER_STAGE[:2]
    extras: ClassVar = {"rope_type": "axial", "pos_embed": "none", "class_token": True, "global_pool": "map"}


def images_as_patches(*, fill: float) -> dict[str, Tensor]:
    """Return an image of 2 x 2 patches and one of 1 x 2, padded with patches of this value."""
    patches = torch.randn(2, 4, 8 * 8 * 3, generator=torch.Generator().manual_seed(6))
    coordinates = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]).repeat(2, 1, 1)
    valid = torch.tensor([[True] * 4, [True, True, False, False]])
    patches[1, 2:], coordinates[1, 2:] = fill, 0
    return {"patches": patches, "patch_coord": coordinates, "patch_valid": valid}


@pytest.fixture(params=[TestNaFlex, TestNaFlexRotary])
def host(request: pytest.FixtureRequest) -> nn.Module:
    """Return a model whose weights are large enough for the blocks to matter."""
    torch.manual_seed(1)
    model = request.param().make().eval()
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            parameter.mul_(1 if parameter.ndim == 1 else 10)
    return model


@pytest.mark.parametrize(
    "spec", ["bisa", "misa", "cb", "cb(at=attention)", "cb_s(init=1, position=front)", "se(reduction=2)"]
)
@torch.no_grad()
def test_what_mixes_tokens_refuses_padding(host: nn.Module, spec: str) -> None:
    expected = host(images_as_patches(fill=0.0))
    attngraft.graft(host, spec)
    host(torch.randn(2, 3, 16, 16))
    with pytest.raises(UsageError, match="padding mask"):
        host(images_as_patches(fill=0.0))
    attngraft.ungraft(host)
    assert torch.equal(host(images_as_patches(fill=0.0)), expected)


@pytest.mark.parametrize("spec", ["horizontal + vertical", "uniform_heads"])
@torch.no_grad()
def test_padding_takes_no_part(host: nn.Module, spec: str) -> None:
    plain = host(images_as_patches(fill=0.0))
    attngraft.graft(host, spec)
    randomize(host, only_grafts=True)
    found = host(images_as_patches(fill=0.0))
    assert not torch.allclose(found, plain)
    torch.testing.assert_close(host(images_as_patches(fill=3.0)), found)
    alone = {name: value[1:, :2] for name, value in images_as_patches(fill=0.0).items()}
    torch.testing.assert_close(host(alone), found[1:])
