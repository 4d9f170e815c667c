"""Rows of the grids of image models, and models without a grid."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import nn

from attngraft.errors import HostError
from attngraft.tasks.captioning.encoder import grid_features, grid_of
from attngraft.tasks.images.inputs import HostInput


@pytest.mark.parametrize(
    ("name", "arguments", "shape"),
    [
        ("resnet10t", {"channels": (8, 8, 8, 16)}, (4, 16)),
        (
            "vit_tiny_patch16_224",
            {"img_size": 64, "depth": 1, "embed_dim": 24, "num_heads": 3, "reg_tokens": 2},
            (16, 24),
        ),
        (
            "swin_tiny_patch4_window7_224",
            {"img_size": 64, "window_size": 2, "embed_dim": 8, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)},
            (4, 64),
        ),
    ],
)
def test_rows_are_positions(name: str, arguments: dict[str, Any], shape: tuple[int, int]) -> None:
    model = timm.create_model(name, **arguments).eval()
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        found = grid_features(model, images)
        assert found.shape == (2, *shape)
        whole = model.forward_features(images)
        whole = whole[:, model.num_prefix_tokens :] if whole.ndim == 3 else whole
        by_position = (
            whole.flatten(2).mT if whole.ndim == 4 and whole.shape[1] == shape[1] else whole.reshape(2, *shape)
        )
    torch.testing.assert_close(found, by_position)


def test_tokens_of_hosts_without_intermediates_lose_their_prefix() -> None:
    class Host(nn.Module):
        num_prefix_tokens = 1

        def forward_features(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten(2).mT

    images = torch.randn(2, 3, 2, 2)
    assert torch.equal(grid_features(Host(), images), images.flatten(2).mT[:, 1:])
    with pytest.raises(HostError, match=r"Sequential: has neither forward_intermediates nor tokens"):
        grid_features(nn.Sequential(), images)


@pytest.mark.parametrize(
    ("size", "rows", "grid"),
    [
        ((224, 224), 49, (7, 7)),
        ((224, 224), 1, (1, 1)),
        ((256, 128), 32, (8, 4)),
        ((128, 256), 32, (4, 8)),
        ((224, 224), 50, None),
        ((256, 128), 36, None),
        ((640, 32), 1, None),
    ],
)
def test_the_grid_has_the_input_s_aspect_ratio(size: tuple[int, int], rows: int, grid: tuple[int, int] | None) -> None:
    given = HostInput.from_model({"input_size": (3, *size)})
    assert grid_of(rows, given) == grid
