"""Losses against their formulas; outputs that are no logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from attngraft.errors import ConfigError, TrainingError
from attngraft.tasks.classification.config import LossConfig
from attngraft.tasks.classification.losses import class_weights, example_losses, training_loss
from attngraft.tasks.heads import heads_of

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
        (LOGITS[:, :4], r"logits of shape \(6, 4\), but the data have 5 classes.*num_classes"),
        (LOGITS[None], r"logits of shape \(1, 6, 5\)"),
    ],
)
def test_outputs_that_are_no_logits(outputs: object, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        heads_of(outputs, classes=5)


WEIGHTS = np.array([0.5, 2.0, 1.0, 0.0, 3.0])


@pytest.mark.parametrize("name", ["cross_entropy", "bce"])
def test_weights_multiply_each_examples_loss(name: str) -> None:
    config = LossConfig(name=name, smoothing=0.1)  # type: ignore[arg-type]
    soft = HOT * 0.9 + 0.1 / 5
    each = _cross_entropy(soft) if name == "cross_entropy" else _bce(soft).mean(-1)
    expected = (each * torch.from_numpy(WEIGHTS)[TARGET]).mean()
    loss = training_loss(config, WEIGHTS)
    assert torch.allclose(loss(LOGITS, TARGET), expected)
    assert torch.allclose(loss(LOGITS, soft), expected)  # what mixing makes of images that it leaves alone
    assert torch.allclose(training_loss(config, np.ones(5))(LOGITS, TARGET), training_loss(config)(LOGITS, TARGET))


def test_a_mixed_example_has_the_mixture_of_both_weights() -> None:
    config = LossConfig(smoothing=0.2)
    soft = 0.8 * (0.3 * HOT + 0.7 * HOT.flip(0)) + 0.2 / 5
    weights = torch.from_numpy(WEIGHTS)
    expected = (_cross_entropy(soft) * (0.3 * weights[TARGET] + 0.7 * weights[TARGET.flip(0)])).mean()
    assert torch.allclose(training_loss(config, WEIGHTS)(LOGITS, soft), expected)


def test_class_weights_have_mean_one_over_images() -> None:
    counts, names = np.array([90, 9, 1]), ("a", "b", "c")
    balanced = class_weights(LossConfig(class_weights="balanced"), counts, names)
    assert balanced == pytest.approx(100 / (3 * counts))
    effective = class_weights(LossConfig(class_weights="effective", effective_beta=0.9), counts, names)
    assert effective is not None
    assert effective[1] / effective[0] == pytest.approx((1 - 0.9**90) / (1 - 0.9**9))
    assert (effective * counts).sum() == pytest.approx(100)
    assert class_weights(LossConfig(), counts, names) is None
    assert class_weights(LossConfig(class_weights={"c": 4.0}), counts, names) == pytest.approx([1, 1, 4])
    with pytest.raises(ConfigError, match=r"task\.loss\.class_weights: no class 'd'"):
        class_weights(LossConfig(class_weights={"d": 4.0}), counts, names)
