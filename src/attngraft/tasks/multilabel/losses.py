"""Training losses for multi-label targets (B, classes): 0 or 1, or in between after mixing."""

import inspect
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from timm.loss import AsymmetricLossMultiLabel
from torch import Tensor

from attngraft.tasks.classification.losses import weights_by_name
from attngraft.tasks.multilabel.config import LossConfig

Loss = Callable[[Tensor, Tensor], Tensor]

LARGEST_WEIGHT = 100.0  #: upper limit of `balanced`, so that a class with one image in thousands does not dominate


def training_loss(config: LossConfig, weights: np.ndarray | None = None) -> Loss:
    """Return a function for the mean loss; `weights` (classes,) multiply the loss of positive labels."""
    return _Bce(config, weights) if config.name == "bce" else _Asymmetric(config)


def teacher_loss(logits: Tensor, taught: Tensor, *, temperature: float, hard: bool) -> Tensor:
    """Return the distillation loss of the logits against the teacher's logits `taught`, (B, classes) each.

    It is the binary cross entropy with the teacher's probabilities sigmoid(taught / T), times T^2, or, with `hard`, the
    binary cross entropy with its predicted labels; averaged over images and classes.
    """
    if hard:
        return F.binary_cross_entropy_with_logits(logits, (taught > 0).to(logits.dtype))
    loss = F.binary_cross_entropy_with_logits(logits / temperature, (taught / temperature).sigmoid())
    return loss * temperature**2


def example_losses(logits: Tensor, target: Tensor) -> Tensor:
    """Return the binary cross entropy of each example (B,), averaged over classes, for every training loss."""
    losses = F.binary_cross_entropy_with_logits(logits, target.to(logits.dtype), reduction="none")
    return losses.mean(-1)


def positive_weights(
    config: LossConfig, counts: np.ndarray, *, images: int, classes: Sequence[str]
) -> np.ndarray | None:
    """Return the weight of each class's positive labels (classes,) from its number of training images.

    For n images of a class, `balanced` is (images - n) / n, but at most `LARGEST_WEIGHT`, and 1 if n = 0.

    Raises:
        ConfigError: a weight is given for an unknown class.
    """
    wanted = config.pos_weight
    if wanted is None:
        return None
    if isinstance(wanted, Mapping):
        return weights_by_name(wanted, classes, field="pos_weight")
    if wanted == "balanced":
        ratio = (images - counts) / np.maximum(counts, 1)
        return np.where(counts > 0, np.clip(ratio, 1 / LARGEST_WEIGHT, LARGEST_WEIGHT), 1.0)
    return np.full(len(counts), float(wanted))


def _smoothed(target: Tensor, smoothing: float) -> Tensor:
    return target * (1 - smoothing) + 0.5 * smoothing if smoothing else target


class _Bce:
    def __init__(self, config: LossConfig, weights: np.ndarray | None) -> None:
        self.smoothing = config.smoothing
        self.weights = None if weights is None else torch.from_numpy(weights)

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.weights is not None and (self.weights.device, self.weights.dtype) != (logits.device, logits.dtype):
            self.weights = self.weights.to(logits)  # at the first step only
        soft = _smoothed(target.to(logits.dtype), self.smoothing)
        return F.binary_cross_entropy_with_logits(logits, soft, pos_weight=self.weights)


class _Asymmetric:
    def __init__(self, config: LossConfig) -> None:
        self.smoothing = config.smoothing
        # early versions of timm always sum; later ones average over the batch by default
        parameters = inspect.signature(AsymmetricLossMultiLabel).parameters
        kind = {"reduction": "sum"} if "reduction" in parameters else {}
        self.summed = AsymmetricLossMultiLabel(config.gamma_neg, config.gamma_pos, config.clip, **kind)

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        soft = _smoothed(target.to(logits.dtype), self.smoothing)
        total: Tensor = self.summed(logits, soft)
        return total / logits.numel()
