"""The recipe's `task` section for classification: every field, its default, what it means and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attngraft.strict import FieldError
from attngraft.tasks.images.config import AugmentConfig, DataConfig
from attngraft.tasks.images.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """`cross_entropy` over softmax, or `bce`: one binary cross entropy per class over sigmoids."""

    name: Literal["cross_entropy", "bce"] = "cross_entropy"  #: which loss
    smoothing: float = 0.1  #: share of the label that is spread over all classes; training only
    target_threshold: float | None = None  #: bce: make mixed targets 0 or 1 at this value
    sum_classes: bool = False  #: bce: sum over classes instead of the mean
    #: factor on the loss of each class's images: `balanced` by 1 / count, `effective` by its effective number, or by name
    class_weights: Literal["balanced", "effective"] | Mapping[str, float] | None = None
    effective_beta: float = 0.999  #: effective: nearer to 1 is nearer to balanced

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise FieldError("smoothing", f"must lie in [0, 1), is {self.smoothing}")
        if self.name != "bce" and self.target_threshold is not None:
            raise FieldError("target_threshold", "belongs to loss bce")
        if self.name != "bce" and self.sum_classes:
            raise FieldError("sum_classes", "belongs to loss bce")
        if not 0 < self.effective_beta < 1:
            raise FieldError("effective_beta", f"must lie between 0 and 1, is {self.effective_beta}")
        if isinstance(self.class_weights, Mapping):
            if wrong := [name for name, weight in self.class_weights.items() if weight < 0]:
                raise FieldError("class_weights", f"must not be negative, and {wrong[0]!r} is")
            if not self.class_weights:
                raise FieldError("class_weights", "names no class; write null for equal weights")


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """By which metric runs are compared, and what is kept of each prediction."""

    #: a comparison needs a score of every image, which is why macro F1 is none of these; for classes of unequal size take
    #: balanced_accuracy
    primary: Literal["top1", "top5", "balanced_accuracy", "loss"] = "top1"
    predictions: Literal["auto", "logits", "top5"] = "auto"  #: auto: logits up to 1000 classes, else the five best


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig:
    """The whole section."""

    data: DataConfig
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    sampling: Sampling | None = None  #: how often training sees each class; null: as often as it occurs
