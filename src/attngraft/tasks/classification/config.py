"""The recipe's `task` section for classification."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attngraft.strict import FieldError, require
from attngraft.tasks.images.config import AugmentConfig, DataConfig
from attngraft.tasks.images.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Classification loss: `cross_entropy` (softmax), or `bce` (binary cross entropy of each class)."""

    name: Literal["cross_entropy", "bce"] = "cross_entropy"  #: the loss function
    smoothing: float = 0.1  #: label smoothing: fraction of each label spread over all classes; training only
    target_threshold: float | None = None  #: bce: binarize mixed targets at this value
    sum_classes: bool = False  #: bce: sum the loss over classes instead of averaging it
    #: loss weight of each class: `balanced` (1 / count), `effective` (effective number of images), or weights by class name
    class_weights: Literal["balanced", "effective"] | Mapping[str, float] | None = None
    effective_beta: float = 0.999  #: effective: beta of the effective number; closer to 1 is closer to `balanced`

    def __post_init__(self) -> None:
        require(self, "smoothing", 0 <= self.smoothing < 1, "must lie in [0, 1)")
        bce, only = self.name == "bce", "applies to loss bce only; remove it, or use --set task.loss.name=bce"
        require(self, "target_threshold", bce or self.target_threshold is None, only)
        require(self, "sum_classes", bce or not self.sum_classes, only)
        require(self, "effective_beta", 0 < self.effective_beta < 1, "must lie between 0 and 1")
        if isinstance(self.class_weights, Mapping):
            if wrong := [name for name, weight in self.class_weights.items() if weight < 0]:
                raise FieldError(
                    "class_weights", f"must not be negative, got {self.class_weights[wrong[0]]} for {wrong[0]!r}"
                )
            if not self.class_weights:
                raise FieldError("class_weights", "is empty; use null for equal weights")


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """The primary metric, and the outputs to store with the predictions."""

    #: metric used to compare runs; for imbalanced classes, balanced_accuracy or macro_f1
    primary: Literal["top1", "top5", "balanced_accuracy", "macro_f1", "loss"] = "top1"
    #: stored outputs; auto: logits for up to 1000 classes, otherwise top5
    predictions: Literal["auto", "logits", "top5"] = "auto"


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig:
    """The `task` section of a classification recipe."""

    data: DataConfig
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    sampling: Sampling | None = None  #: class frequencies in training; null: as in the data
