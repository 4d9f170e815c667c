"""Training losses over hard labels (B,) or soft ones (B, classes), and each example's loss for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from timm.loss import BinaryCrossEntropy
from torch import Tensor

from attngraft.errors import ConfigError
from attngraft.suggest import did_you_mean
from attngraft.tasks.classification.config import LossConfig

Loss = Callable[[Tensor, Tensor], Tensor]


def training_loss(config: LossConfig, weights: np.ndarray | None = None) -> Loss:
    """Mean over the batch. Hard labels are smoothed here; soft ones come smoothed from mixing.

    With `weights` (classes,) each example's loss is multiplied by its class's weight, a mixed one's by the mixture of
    both. The mean stays over examples, so that it does not depend on how a batch is cut.
    """
    if weights is not None:
        return _Weighted(config, weights)
    if config.name == "bce":
        bce = BinaryCrossEntropy(config.smoothing, config.target_threshold, sum_classes=config.sum_classes)
        return lambda logits, target: bce(logits, target if target.ndim == 1 else target.to(logits.dtype))

    def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
        if target.ndim == 1:
            return F.cross_entropy(logits, target, label_smoothing=config.smoothing)
        return F.cross_entropy(logits, target.to(logits.dtype))

    return cross_entropy


def teacher_loss(logits: Tensor, taught: Tensor, *, temperature: float, hard: bool) -> Tensor:
    """How far the student's `logits` (B, classes) are from the teacher's, mean over the batch.

    T^2 KL(softmax(taught / T) || softmax(logits / T)) (Hinton et al. 2015; the factor T^2 keeps gradients of a size as T
    grows), or, `hard`, the cross entropy with the teacher's best class (DeiT, Touvron et al. 2021, equation 3).
    """
    if hard:
        return F.cross_entropy(logits, taught.argmax(-1))
    student, teacher = ((each / temperature).log_softmax(-1) for each in (logits, taught))
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2


def example_losses(config: LossConfig, logits: Tensor, target: Tensor) -> Tensor:
    """The same loss per example (B,), without smoothing and class weights; `target` hard."""
    if config.name == "bce":
        hot = F.one_hot(target, logits.shape[-1]).to(logits.dtype)
        losses = F.binary_cross_entropy_with_logits(logits, hot, reduction="none")
        return losses.sum(-1) if config.sum_classes else losses.mean(-1)
    return F.cross_entropy(logits, target, reduction="none")


def class_weights(config: LossConfig, counts: np.ndarray, classes: Sequence[str]) -> np.ndarray | None:
    """The weight of each class (classes,), from how many training images it has.

    `balanced` is 1 / n, `effective` (1 - beta) / (1 - beta^n) (Cui et al. 2019, equation 12), both scaled so that the mean
    over training images is 1. Weights by name are taken as they are; classes that are not named have 1.

    Raises:
        ConfigError: a weight for a class that is not there.
    """
    wanted = config.class_weights
    if wanted is None:
        return None
    if isinstance(wanted, Mapping):
        for name in wanted:
            if name not in classes:
                raise ConfigError(f"task.loss.class_weights: there is no class {name!r}{did_you_mean(name, classes)}")
        return np.array([wanted.get(name, 1.0) for name in classes])
    beta = config.effective_beta
    weights = 1 / counts if wanted == "balanced" else (1 - beta) / (1 - beta**counts)
    scaled: np.ndarray = weights * counts.sum() / (weights * counts).sum()
    return scaled


class _Weighted:
    """`training_loss` with weights."""

    def __init__(self, config: LossConfig, weights: np.ndarray) -> None:
        self.config, self.weights = config, torch.from_numpy(weights)
        self.bce = BinaryCrossEntropy(config.smoothing, config.target_threshold, reduction="none")

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        if (self.weights.device, self.weights.dtype) != (logits.device, logits.dtype):
            self.weights = self.weights.to(logits)  # once, not at every step
        return (self._of_examples(target) * self._losses(logits, target)).mean()

    def _of_examples(self, target: Tensor) -> Tensor:
        if target.ndim == 1:
            return self.weights[target]
        smoothing = self.config.smoothing
        unsmoothed = (target.to(self.weights.dtype) - smoothing / target.shape[1]) / (1 - smoothing)
        return unsmoothed @ self.weights

    def _losses(self, logits: Tensor, target: Tensor) -> Tensor:
        soft = target if target.ndim == 1 else target.to(logits.dtype)
        if self.config.name == "bce":
            losses: Tensor = self.bce(logits, soft)
            return losses.sum(-1) if self.config.sum_classes else losses.mean(-1)
        smoothing = self.config.smoothing if target.ndim == 1 else 0.0
        return F.cross_entropy(logits, soft, label_smoothing=smoothing, reduction="none")
