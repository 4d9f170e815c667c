"""The recipe's `task` section for multi-label classification."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attngraft.strict import require
from attngraft.tasks.images.config import AugmentConfig, DataConfig


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Multi-label loss: `bce` or `asymmetric`.

    `bce` is the binary cross entropy, averaged over classes. `asymmetric` down-weights easy negatives (Ridnik et al. 2021,
    equations 4 to 7), for data with many classes and few labels per image.
    """

    name: Literal["bce", "asymmetric"] = "bce"  #: the loss function
    smoothing: float = 0.0  #: label smoothing: labels 0 and 1 become smoothing / 2 and 1 - smoothing / 2; training only
    #: bce: weight of positive labels: `balanced` (negatives / positives), a number, or numbers by class name
    pos_weight: Literal["balanced"] | float | Mapping[str, float] | None = None
    gamma_neg: float = 4.0  #: asymmetric: focusing exponent of negative labels
    gamma_pos: float = 1.0  #: asymmetric: focusing exponent of positive labels
    clip: float = 0.05  #: asymmetric: negative labels predicted with a lower probability are ignored

    def __post_init__(self) -> None:
        require(self, "smoothing", 0 <= self.smoothing < 1, "must lie in [0, 1)")
        require(self, "gamma_neg", self.gamma_neg >= 0, "must not be negative")
        require(self, "gamma_pos", self.gamma_pos >= 0, "must not be negative")
        require(self, "clip", 0 <= self.clip < 1, "must lie in [0, 1)")
        bce = self.pos_weight is None or self.name == "bce"
        require(self, "pos_weight", bce, "applies to loss bce only; remove it, or use --set task.loss.name=bce")
        weights = self.pos_weight.values() if isinstance(self.pos_weight, Mapping) else [self.pos_weight]
        positive = not any(isinstance(weight, float) and weight <= 0 for weight in weights)
        require(self, "pos_weight", positive, "must be positive")


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """The primary metric, and the decision threshold for F1."""

    #: metric used to compare runs; image_ap and loss, as means over images, are more precise in small data sets
    primary: Literal["image_ap", "map", "macro_f1", "micro_f1", "loss"] = "image_ap"
    threshold: float = 0.5  #: for F1, labels with at least this probability are predicted

    def __post_init__(self) -> None:
        require(self, "threshold", 0 < self.threshold < 1, "must lie between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class MultiLabelConfig:
    """The `task` section of a multi-label recipe."""

    data: DataConfig
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
