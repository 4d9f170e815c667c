"""The recipe's `task` section for token labeling: classification's, and where the patches' labels come from."""

from __future__ import annotations

from dataclasses import dataclass, field

from attngraft.strict import FieldError
from attngraft.tasks.classification.config import ClassificationConfig


@dataclass(frozen=True, kw_only=True)
class TokenLabelConfig:
    """The labels of patches, and how much they count."""

    maps: str | None = None  #: folder of dense label maps, <class>/<image>.pt; null: every patch has the image's label
    dense_weight: float = 0.5  #: factor on the patches' loss
    class_weight: float = 1.0  #: factor on the class token's
    #: the class token learns a mean of the image's label and that of its map, as in fine-tuning, instead of the latter
    with_ground_truth: bool = False

    def __post_init__(self) -> None:
        for name in ("dense_weight", "class_weight"):
            if getattr(self, name) < 0:
                raise FieldError(name, f"must not be negative, is {getattr(self, name)}")
        if self.with_ground_truth and self.maps is None:
            raise FieldError(
                "with_ground_truth", "says how maps are mixed with labels; without maps there are only labels"
            )


@dataclass(frozen=True, kw_only=True)
class TokenLabelingConfig(ClassificationConfig):
    """The whole section."""

    token_labels: TokenLabelConfig = field(default_factory=TokenLabelConfig)

    def __post_init__(self) -> None:
        if self.augment.mixes:
            raise FieldError("augment", "token labeling mixes tokens inside the model; leave mixup and cutmix at 0")
        if self.loss.name != "cross_entropy" or self.loss.class_weights is not None:
            raise FieldError("loss", "is cross entropy without class weights in token labeling; leave the rest out")
        if self.token_labels.maps is not None and self.data.classes is not None:
            raise FieldError("data.classes", "cannot be chosen where label maps number all classes of the data")
