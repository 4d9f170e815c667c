"""The loss in blocks of rows against `interpolate` and `cross_entropy`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.tasks.images.boundaries import IGNORED
from attngraft.tasks.segmentation.loss import row_block_loss


def batch(size: tuple[int, int], small: tuple[int, int], *, classes: int = 5) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    label = torch.randint(classes, (2, *size)).to(torch.uint8)
    label[torch.rand(label.shape) < 0.2] = IGNORED
    return torch.randn(2, classes, *small, dtype=torch.float64), label


def plain(logits: Tensor, label: Tensor, weights: Tensor | None = None) -> Tensor:
    large = F.interpolate(logits, label.shape[1:], mode="bilinear", align_corners=False)
    return F.cross_entropy(large, label.long(), weights, ignore_index=IGNORED)


@pytest.mark.parametrize("rows", [1, 7, 32])
@pytest.mark.parametrize(
    ("size", "small"), [((33, 50), (9, 13)), ((8, 8), (8, 8)), ((5, 9), (11, 4)), ((1, 1), (1, 1)), ((64, 3), (16, 1))]
)
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_loss_of_upsampled_logits(
    size: tuple[int, int], small: tuple[int, int], rows: int, weighted: bool
) -> None:
    logits, label = batch(size, small)
    label[0, 0, 0] = 1  # labeled, also if the map has one pixel
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0], dtype=torch.float64) if weighted else None
    found, expected = [], []
    for results, loss in (
        (found, lambda x: row_block_loss(x, label, weights=weights, rows=rows)),
        (expected, lambda x: plain(x, label, weights)),
    ):
        given = logits.clone().requires_grad_()
        value = loss(given)
        (2 * value).backward()
        results += [value.detach(), given.grad]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-7, rtol=1e-6)


def test_its_gradient_is_numerically_right() -> None:
    logits, label = batch((6, 5), (3, 2), classes=3)
    assert torch.autograd.gradcheck(lambda x: row_block_loss(x, label, rows=4), logits.requires_grad_())


def test_without_labels_it_is_zero_with_a_graph() -> None:
    logits, label = batch((6, 5), (3, 2))
    logits.requires_grad_()
    loss = row_block_loss(logits, torch.full_like(label, IGNORED))
    loss.backward()
    assert loss == 0
    assert torch.count_nonzero(logits.grad) == 0


def test_half_precision_logits_have_a_loss_in_float32() -> None:
    logits, label = batch((24, 20), (6, 5))
    half = logits.to(torch.bfloat16).requires_grad_()
    loss = row_block_loss(half, label)
    loss.backward()
    assert (loss.dtype, half.grad.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(loss, plain(half.detach().float(), label))
