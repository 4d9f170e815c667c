"""Training losses for hard labels (B,) and soft labels (B, classes); evaluation losses of examples."""

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
    """Return a function that computes the mean loss over a batch.

    It smooths hard labels; soft labels are already smoothed by mixing. With `weights` (classes,), each example's loss is
    multiplied by the weight of its class; mixed classes give a weighted average. The mean divides by the number of examples,
    not by the sum of weights, so it does not depend on how a batch is split.
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
    """Return the distillation loss of the logits against the teacher's logits `taught`, (B, classes) each.

    The loss is T^2 KL(softmax(taught / T) || softmax(logits / T)), averaged over the batch (Hinton et al. 2015; the factor
    T^2 preserves the scale of gradients as T grows). With `hard`, it is the cross entropy with the teacher's top
    class (DeiT, Touvron et al. 2021, equation 3).
    """
    if hard:
        return F.cross_entropy(logits, taught.argmax(-1))
    student, teacher = ((each / temperature).log_softmax(-1) for each in (logits, taught))
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2


def example_losses(config: LossConfig, logits: Tensor, target: Tensor) -> Tensor:
    """Return the loss of each example (B,), without smoothing and class weights; `target` is hard."""
    if config.name == "bce":
        hot = F.one_hot(target, logits.shape[-1]).to(logits.dtype)
        losses = F.binary_cross_entropy_with_logits(logits, hot, reduction="none")
        return losses.sum(-1) if config.sum_classes else losses.mean(-1)
    return F.cross_entropy(logits, target, reduction="none")


def class_weights(config: LossConfig, counts: np.ndarray, classes: Sequence[str]) -> np.ndarray | None:
    """Return the weight of each class (classes,) from its number of training images.

    For n images, `balanced` is 1 / n and `effective` is (1 - beta) / (1 - beta^n) (Cui et al. 2019, equation 12), both
    scaled to a mean of 1 over the training images. Weights by name are used as given and default to 1.

    Raises:
        ConfigError: a weight is given for an unknown class.
    """
    wanted = config.class_weights
    if wanted is None:
        return None
    if isinstance(wanted, Mapping):
        return weights_by_name(wanted, classes, field="class_weights")
    beta = config.effective_beta
    weights = 1 / counts if wanted == "balanced" else (1 - beta) / (1 - beta**counts)
    scaled: np.ndarray = weights * counts.sum() / (weights * counts).sum()
    return scaled


def weights_by_name(weights: Mapping[str, float], classes: Sequence[str], *, field: str) -> np.ndarray:
    """Return the weight of each class, 1 by default.

    Raises:
        ConfigError: a weight is given for an unknown class.
    """
    for name in weights:
        if name not in classes:
            raise ConfigError(f"task.loss.{field}: no class {name!r}{did_you_mean(name, classes)}")
    return np.array([weights.get(name, 1.0) for name in classes])


class _Weighted:
    """`training_loss` with class weights."""

    def __init__(self, config: LossConfig, weights: np.ndarray) -> None:
        self.config, self.weights = config, torch.from_numpy(weights)
        self.bce = BinaryCrossEntropy(config.smoothing, config.target_threshold, reduction="none")

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        if (self.weights.device, self.weights.dtype) != (logits.device, logits.dtype):
            self.weights = self.weights.to(logits)  # at the first step only
        return (self._example_weights(target) * self._example_losses(logits, target)).mean()

    def _example_weights(self, target: Tensor) -> Tensor:
        if target.ndim == 1:
            return self.weights[target]
        smoothing = self.config.smoothing
        unsmoothed = (target.to(self.weights.dtype) - smoothing / target.shape[1]) / (1 - smoothing)
        return unsmoothed @ self.weights

    def _example_losses(self, logits: Tensor, target: Tensor) -> Tensor:
        soft = target if target.ndim == 1 else target.to(logits.dtype)
        if self.config.name == "bce":
            losses: Tensor = self.bce(logits, soft)
            return losses.sum(-1) if self.config.sum_classes else losses.mean(-1)
        smoothing = self.config.smoothing if target.ndim == 1 else 0.0
        return F.cross_entropy(logits, soft, label_smoothing=smoothing, reduction="none")
