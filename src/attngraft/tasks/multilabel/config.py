"""The recipe's `task` section for several labels per image: every field, its default, what it means, what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attngraft.strict import FieldError
from attngraft.tasks.images.config import AugmentConfig, DataConfig


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """`bce`: one binary cross entropy per class, mean over classes; `asymmetric`: the same with easy negatives weighed
    down (Ridnik et al. 2021, equations 4 to 7), for many classes of which an image has few."""

    name: Literal["bce", "asymmetric"] = "bce"  #: which loss
    smoothing: float = 0.0  #: labels become smoothing / 2 and 1 - smoothing / 2; training only
    #: bce: weight of present labels against absent ones: `balanced` by absent / present, a number, or by class name
    pos_weight: Literal["balanced"] | float | Mapping[str, float] | None = None
    gamma_neg: float = 4.0  #: asymmetric: how strongly easy absent labels are weighed down
    gamma_pos: float = 1.0  #: asymmetric: the same for present labels
    clip: float = 0.05  #: asymmetric: absent labels below this probability cost nothing

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise FieldError("smoothing", f"must lie in [0, 1), is {self.smoothing}")
        for name in ("gamma_neg", "gamma_pos"):
            if getattr(self, name) < 0:
                raise FieldError(name, f"must not be negative, is {getattr(self, name)}")
        if not 0 <= self.clip < 1:
            raise FieldError("clip", f"must lie in [0, 1), is {self.clip}")
        if self.pos_weight is not None and self.name != "bce":
            raise FieldError("pos_weight", "belongs to loss bce")
        weights = self.pos_weight.values() if isinstance(self.pos_weight, Mapping) else [self.pos_weight]
        if any(isinstance(weight, float) and weight <= 0 for weight in weights):
            raise FieldError("pos_weight", f"must be positive, is {self.pos_weight}")


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """How metrics are taken, and by which runs are compared."""

    #: a comparison needs a score of every image, which is why mAP, a mean over classes, is none of these
    primary: Literal["image_ap", "loss"] = "image_ap"
    threshold: float = 0.5  #: probability from which a label counts as given, for F1

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise FieldError("threshold", f"must lie between 0 and 1, is {self.threshold}")


@dataclass(frozen=True, kw_only=True)
class MultiLabelConfig:
    """The whole section."""

    data: DataConfig
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
