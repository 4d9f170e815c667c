"""The recipe's `task` section for token labeling: fields of classification, and `token_labels`."""

from dataclasses import dataclass, field

from attngraft.strict import FieldError, require
from attngraft.tasks.classification.config import ClassificationConfig


@dataclass(frozen=True, kw_only=True)
class TokenLabelConfig:
    """Source and weight of the patch labels."""

    maps: str | None = None  #: folder of dense label maps, <class>/<image>.pt; null: all patches have the image's label
    dense_weight: float = 0.5  #: weight of the patch loss
    class_weight: float = 1.0  #: weight of the class token loss
    #: target of the class token: a weighted mean of the image's label and the map's label, as in the authors' fine-tuning,
    #: instead of the map's label alone
    with_ground_truth: bool = False

    def __post_init__(self) -> None:
        require(self, "dense_weight", self.dense_weight >= 0, "must not be negative")
        require(self, "class_weight", self.class_weight >= 0, "must not be negative")
        has_maps = self.maps is not None or not self.with_ground_truth
        require(self, "with_ground_truth", has_maps, "requires label maps; add --set task.token_labels.maps=FOLDER")


@dataclass(frozen=True, kw_only=True)
class TokenLabelingConfig(ClassificationConfig):
    """The `task` section of a token labeling recipe."""

    token_labels: TokenLabelConfig = field(default_factory=TokenLabelConfig)

    def __post_init__(self) -> None:
        if self.augment.mixes:
            raise FieldError("augment", "token labeling mixes tokens inside the model; set mixup and cutmix to 0")
        if self.loss.name != "cross_entropy" or self.loss.class_weights is not None:
            raise FieldError(
                "loss", "token labeling uses cross entropy without class weights; remove name and class_weights"
            )
        if self.token_labels.maps is not None and self.data.classes is not None:
            raise FieldError(
                "data.classes", "cannot be combined with label maps, whose class indices refer to all classes"
            )
