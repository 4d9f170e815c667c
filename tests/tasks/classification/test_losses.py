"""Losses against their formulas; outputs that are no logits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attngraft.errors import TrainingError
from attngraft.tasks.classification.config import LossConfig
from attngraft.tasks.classification.losses import example_losses, heads_of, training_loss

LOGITS = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
TARGET = torch.tensor([0, 1, 2, 3, 4, 0])
HOT = torch.eye(5, dtype=torch.float64)[TARGET]


def _cross_entropy(soft: Tensor) -> Tensor:
    return -(soft * LOGITS.log_softmax(-1)).sum(-1)


def _bce(soft: Tensor) -> Tensor:
    share = LOGITS.sigmoid()
    return -(soft * share.log() + (1 - soft) * (1 - share).log())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_hard_labels_are_smoothed(smoothing: float) -> None:
    soft = HOT * (1 - smoothing) + smoothing / 5
    entropy = training_loss(LossConfig(smoothing=smoothing))(LOGITS, TARGET)
    assert torch.allclose(entropy, _cross_entropy(soft).mean())
    bce = training_loss(LossConfig(name="bce", smoothing=smoothing))(LOGITS, TARGET)
    assert torch.allclose(bce, _bce(soft).mean())
    summed = training_loss(LossConfig(name="bce", smoothing=smoothing, sum_classes=True))(LOGITS, TARGET)
    assert torch.allclose(summed, _bce(soft).sum(-1).mean())


def test_soft_labels_are_taken_as_they_are() -> None:
    soft = torch.rand(6, 5).softmax(-1)
    entropy = training_loss(LossConfig(smoothing=0.1))(LOGITS, soft)
    assert torch.allclose(entropy, _cross_entropy(soft.double()).mean())
    bce = training_loss(LossConfig(name="bce"))(LOGITS, soft)
    assert torch.allclose(bce, _bce(soft.double()).mean())
    threshold = training_loss(LossConfig(name="bce", target_threshold=0.2))(LOGITS, soft)
    assert torch.allclose(threshold, _bce((soft > 0.2).double()).mean())


def test_evaluation_counts_each_example_without_smoothing() -> None:
    assert torch.allclose(example_losses(LossConfig(smoothing=0.3), LOGITS, TARGET), _cross_entropy(HOT))
    assert torch.allclose(example_losses(LossConfig(name="bce"), LOGITS, TARGET), _bce(HOT).mean(-1))
    summed = example_losses(LossConfig(name="bce", sum_classes=True), LOGITS, TARGET)
    assert torch.allclose(summed, _bce(HOT).sum(-1))


def test_half_precision_is_widened_and_double_kept() -> None:
    assert [head.dtype for head in heads_of((LOGITS.half(), LOGITS.bfloat16()), classes=5)] == [torch.float32] * 2
    assert heads_of(LOGITS, classes=5)[0].dtype == torch.float64


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"logits": LOGITS}, "returned dict; classification needs a tensor"),
        ((LOGITS, LOGITS, LOGITS), r"returned tuple of 3 \(Tensor, Tensor, Tensor\)"),
        ((LOGITS, None), r"returned tuple of 2 \(Tensor, NoneType\)"),
        ([], "returned list of 0"),
        (LOGITS[:, :4], r"logits of shape \(6, 4\); the data have 5 classes.*num_classes"),
        (LOGITS[None], r"logits of shape \(1, 6, 5\)"),
    ],
)
def test_outputs_that_are_no_logits(outputs: object, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        heads_of(outputs, classes=5)
