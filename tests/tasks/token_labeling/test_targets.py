"""Targets of patches: label maps cropped like their images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attngraft.tasks.token_labeling.losses import grid_of, map_targets

WHOLE = [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]


def maps(rows: int = 4, columns: int = 6) -> Tensor:
    """Two images' maps of the best three of ten classes."""
    values, classes = torch.randn(2, 10, rows, columns, generator=torch.Generator().manual_seed(0)).topk(3, dim=1)
    return torch.stack([values, classes.float()], 1).half()


def pictures(found: Tensor) -> Tensor:
    """Scores of all classes (B, 10, Y, X)."""
    scores = torch.zeros(2, 10, *found.shape[3:])
    for image, rank, row, column in torch.cartesian_prod(*map(torch.arange, found[:, 0].shape)).tolist():
        scores[image, int(found[image, 1, rank, row, column]), row, column] = found[image, 0, rank, row, column]
    return scores


def test_a_patch_for_each_place() -> None:
    """Where boxes are as large as places, samples are their centers: the scores themselves."""
    given = maps()
    found = map_targets(given, torch.tensor([WHOLE, WHOLE]), grid=(4, 6), classes=10)
    assert found.shape == (2, 10, 25)
    torch.testing.assert_close(found[..., 1:].unflatten(2, (4, 6)), pictures(given).softmax(1))
    torch.testing.assert_close(found.sum(1), torch.ones(2, 25))


def test_the_class_token_sees_the_whole_view() -> None:
    given = maps()
    found = map_targets(given, torch.tensor([WHOLE, WHOLE]), grid=(2, 3), classes=10)
    torch.testing.assert_close(found[..., 0], pictures(given).mean((2, 3)).softmax(1))
    patches = torch.nn.functional.avg_pool2d(pictures(given), 2).softmax(1)
    torch.testing.assert_close(found[..., 1:].unflatten(2, (2, 3)), patches)


def test_a_part_of_the_image_mirrored_and_upside_down() -> None:
    """Left half of the first, lower right quarter of the second; rows are rows, columns are columns."""
    given = maps()
    shown = torch.tensor([[0.0, 0.0, 0.5, 1.0, 1.0, 0.0], [0.5, 0.5, 1.0, 1.0, 0.0, 1.0]])
    scores = pictures(given)
    first = map_targets(given[:1], shown[:1], grid=(4, 3), classes=10)[0, :, 1:].unflatten(1, (4, 3))
    torch.testing.assert_close(first, scores[0, :, :, :3].flip(2).softmax(0))
    second = map_targets(given[1:], shown[1:], grid=(2, 3), classes=10)[0, :, 1:].unflatten(1, (2, 3))
    torch.testing.assert_close(second, scores[1, :, 2:, 3:].flip(1).softmax(0))


@pytest.mark.parametrize(
    ("patches", "image", "grid"), [(196, (224, 224), (14, 14)), (24, (64, 96), (4, 6)), (1, (16, 16), (1, 1))]
)
def test_the_grid_of_patches(patches: int, image: tuple[int, int], grid: tuple[int, int]) -> None:
    assert grid_of(patches, image) == grid
