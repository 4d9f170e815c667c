"""The recipe's `task` section for classification: every field, its default, what it means and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from attngraft.strict import FieldError
from attngraft.tasks.images.config import AugmentConfig, DataConfig


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """`cross_entropy` over softmax, or `bce`: one binary cross entropy per class over sigmoids."""

    name: Literal["cross_entropy", "bce"] = "cross_entropy"
    smoothing: float = 0.1  #: share of the label that is spread over all classes; training only
    target_threshold: float | None = None  #: bce: make mixed targets 0 or 1 at this value
    sum_classes: bool = False  #: bce: sum over classes instead of the mean

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise FieldError("smoothing", f"must lie in [0, 1), is {self.smoothing}")
        if self.name != "bce" and self.target_threshold is not None:
            raise FieldError("target_threshold", "belongs to loss bce")
        if self.name != "bce" and self.sum_classes:
            raise FieldError("sum_classes", "belongs to loss bce")


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """What is kept of each prediction."""

    predictions: Literal["auto", "logits", "top5"] = "auto"  #: auto: logits up to 1000 classes, else the five best


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig:
    """The whole section."""

    data: DataConfig
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
