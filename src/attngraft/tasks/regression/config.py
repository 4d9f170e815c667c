"""The recipe's `task` section for regression."""

from dataclasses import dataclass, field
from typing import Literal

from attngraft.strict import FieldError, require
from attngraft.tasks.images.config import AugmentConfig, NumbersConfig


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Regression loss: `mse` (squared), `l1` (absolute) or `huber` (squared up to `delta`, then linear).

    The loss is averaged over images and numbers. Each number is in units of its standard deviation in training.
    """

    name: Literal["mse", "l1", "huber"] = "mse"  #: the loss function
    delta: float = 1.0  #: huber: error in standard deviations above which the loss is linear

    def __post_init__(self) -> None:
        require(self, "delta", self.delta > 0, "must be positive")
        used = self.name == "huber" or self.delta == 1
        require(self, "delta", used, "applies to loss huber only; remove it, or use --set task.loss.name=huber")


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """The primary metric."""

    primary: Literal["rmse", "mae", "r2", "spearman"] = "rmse"  #: metric used to compare runs


@dataclass(frozen=True, kw_only=True)
class RegressionConfig:
    """The `task` section of a regression recipe."""

    data: NumbersConfig
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)

    def __post_init__(self) -> None:
        if self.augment.mixes:
            raise FieldError(
                "augment",
                "mixup and cutmix are for classes; use --set task.augment.mixup=0 --set task.augment.cutmix=0",
            )
