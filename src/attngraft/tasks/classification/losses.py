"""Training losses over hard labels (B,) or soft ones (B, classes), and each example's loss for evaluation."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from timm.loss import BinaryCrossEntropy
from torch import Tensor

from attngraft.errors import TrainingError
from attngraft.tasks.classification.config import LossConfig

Loss = Callable[[Tensor, Tensor], Tensor]


def training_loss(config: LossConfig) -> Loss:
    """Mean over the batch. Hard labels are smoothed here; soft ones come smoothed from mixing."""
    if config.name == "bce":
        bce = BinaryCrossEntropy(config.smoothing, config.target_threshold, sum_classes=config.sum_classes)
        return lambda logits, target: bce(logits, target if target.ndim == 1 else target.to(logits.dtype))

    def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
        if target.ndim == 1:
            return F.cross_entropy(logits, target, label_smoothing=config.smoothing)
        return F.cross_entropy(logits, target.to(logits.dtype))

    return cross_entropy


def example_losses(config: LossConfig, logits: Tensor, target: Tensor) -> Tensor:
    """The same loss per example (B,), without smoothing; `target` hard."""
    if config.name == "bce":
        hot = F.one_hot(target, logits.shape[-1]).to(logits.dtype)
        losses = F.binary_cross_entropy_with_logits(logits, hot, reduction="none")
        return losses.sum(-1) if config.sum_classes else losses.mean(-1)
    return F.cross_entropy(logits, target, reduction="none")


def heads_of(outputs: object, *, classes: int) -> tuple[Tensor, ...]:
    """The logits of each of the model's heads (B, classes): one, or two of a distilled host in training.

    Half precision becomes float32, because losses lose digits there.

    Raises:
        TrainingError: no tensor, or one of another shape.
    """
    heads = outputs if isinstance(outputs, tuple | list) else (outputs,)
    if len(heads) not in (1, 2) or not all(isinstance(head, Tensor) for head in heads):
        raise TrainingError(
            f"the host returned {_describe(outputs)}; classification needs a tensor of logits, or two from a distilled host"
        )
    for head in heads:
        if head.ndim != 2 or head.shape[1] != classes:
            raise TrainingError(
                f"the host returned logits of shape {tuple(head.shape)}; the data have {classes} classes, so they must be "
                f"(batch, {classes}): leave num_classes to the data"
            )
    return tuple(head.float() if head.dtype in (torch.float16, torch.bfloat16) else head for head in heads)


def _describe(outputs: object) -> str:
    if isinstance(outputs, tuple | list):
        return f"{type(outputs).__name__} of {len(outputs)} ({', '.join(type(part).__name__ for part in outputs[:4])})"
    return type(outputs).__name__
