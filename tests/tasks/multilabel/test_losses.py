"""Losses against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from attngraft.errors import ConfigError
from attngraft.tasks.multilabel.config import LossConfig
from attngraft.tasks.multilabel.losses import example_losses, positive_weights, training_loss

LOGITS = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
LABELS = (torch.rand(6, 5, generator=torch.Generator().manual_seed(1)) < 0.4).to(torch.uint8)


def _bce(labels: Tensor, weights: Tensor | float = 1.0) -> Tensor:
    share = LOGITS.sigmoid()
    return -(weights * labels * share.log() + (1 - labels) * (1 - share).log())


def test_binary_cross_entropy() -> None:
    labels = LABELS.float()
    assert torch.allclose(training_loss(LossConfig())(LOGITS, LABELS), _bce(labels).mean())
    smooth = training_loss(LossConfig(smoothing=0.2))(LOGITS, LABELS)
    assert torch.allclose(smooth, _bce(0.8 * labels + 0.1).mean())
    weights = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    weighed = training_loss(LossConfig(pos_weight=2.0), weights)(LOGITS, LABELS)
    assert torch.allclose(weighed, _bce(labels, torch.from_numpy(weights).float()).mean())
    assert torch.allclose(example_losses(LOGITS, LABELS), _bce(labels).mean(-1))


def test_the_asymmetric_loss() -> None:
    """Equation 7 of Ridnik et al. 2021, and plain cross entropy where nothing is asymmetric."""
    labels, share = LABELS.float(), LOGITS.sigmoid()
    shifted = (share - 0.05).clamp(min=0)
    present = -((1 - share) ** 1) * share.log()
    absent = -(shifted**4) * (1 - shifted).log()
    expected = (labels * present + (1 - labels) * absent).mean()
    assert torch.allclose(training_loss(LossConfig(name="asymmetric"))(LOGITS, LABELS), expected)
    plain = LossConfig(name="asymmetric", gamma_neg=0, gamma_pos=0, clip=0)
    assert torch.allclose(training_loss(plain)(LOGITS, LABELS), _bce(labels).mean())


def test_positive_weights() -> None:
    counts, names = np.array([50, 10, 0, 1]), ("a", "b", "c", "d")

    def weights(value: object) -> np.ndarray | None:
        return positive_weights(LossConfig(pos_weight=value), counts, images=1000, classes=names)  # type: ignore[arg-type]

    assert weights("balanced") == pytest.approx([19, 99, 1, 100])
    assert weights(3.0) == pytest.approx([3, 3, 3, 3])
    assert weights({"b": 7.0}) == pytest.approx([1, 7, 1, 1])
    assert weights(None) is None
    with pytest.raises(ConfigError, match=r"task\.loss\.pos_weight: no class 'e'"):
        weights({"e": 7.0})
