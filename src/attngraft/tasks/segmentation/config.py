"""The recipe's `task` section for segmentation."""

from dataclasses import dataclass, field, replace
from typing import Literal

from attngraft.strict import FieldError, require
from attngraft.tasks.images.config import LARGEST_SIDE, SplitConfig

LARGEST_SCALE = 32  #: factor on the size of an image; larger ones fill the memory
_RANGE = f"above 0, at most {LARGEST_SCALE}"


@dataclass(frozen=True, kw_only=True)
class MaskDataConfig(SplitConfig):
    """Images and masks, and their split into training, validation and test.

    A mask is a palette or gray image whose values are labels, or an RGB image with the colors of a class file. 255, and
    classes called void, unlabeled or unknown, are always ignored. Without a folder for validation, a random part of the
    training images is used.
    """

    source: str  #: a folder with images and masks, as also of ADE20K, Cityscapes and COCO; or a Hugging Face data set
    images: str | None = None  #: name of the folder or column of images; null: images, image, img, leftImg8bit, ...
    masks: str | None = None  #: name of the folder or column of masks; null: masks, labels, annotations, gtFine, ...
    #: file with a line per class, `name`, `label name` or `name r g b`; null: classes.txt in the source, if there is one
    classes_file: str | None = None
    ignore: tuple[int | str, ...] = ()  #: further labels that are ignored, by number or class name
    #: ignore label 0 and subtract 1 from the others; always for ADE20K with its objectInfo150.txt
    reduce_zero_label: bool = False

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise FieldError("source", "is empty; give a folder with images and masks, or a Hugging Face data set")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class MaskAugmentConfig:
    """Training augmentation: random scale, crop, horizontal flip and photometric distortion, of image and mask together."""

    crop: tuple[int, int] = (512, 512)  #: height and width of a training example
    size: int | None = None  #: shorter side of the images before scaling; null: their own size
    scale: tuple[float, float] = (0.5, 2.0)  #: smallest and largest factor of the size, log-uniform
    max_share: float = 0.75  #: a crop in which a class has more of the labeled pixels is drawn again, up to 10 times
    hflip: float = 0.5  #: probability of a horizontal flip
    photometric: bool = True  #: random brightness, contrast, saturation and hue

    def __post_init__(self) -> None:
        fit = 1 <= min(self.crop) <= max(self.crop) <= LARGEST_SIDE
        require(self, "crop", fit, f"must be height and width, from 1 to {LARGEST_SIDE}")
        require(self, "size", self.size is None or 1 <= self.size <= LARGEST_SIDE, f"must be from 1 to {LARGEST_SIDE}")
        low, high = self.scale
        require(self, "scale", 0 < low <= high <= LARGEST_SCALE, f"must be two increasing numbers {_RANGE}")
        require(self, "max_share", 0 < self.max_share <= 1, "must lie in (0, 1]")
        require(self, "hflip", 0 <= self.hflip <= 1, "must be a probability between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class MaskLossConfig:
    """The cross-entropy of labeled pixels."""

    class_weights: Literal["none", "sqrt"] | tuple[float, ...] = "none"  #: sqrt: of the inverse frequency in training
    rows: int = 8  #: rows of the label map for which logits are computed at a time; changes memory, not values

    def __post_init__(self) -> None:
        weights = self.class_weights
        positive = isinstance(weights, str) or (bool(weights) and min(weights) > 0)
        require(self, "class_weights", positive, "must be positive numbers")
        require(self, "rows", self.rows >= 1, "must be at least 1")


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    """Inference on images of any size. Predictions have the size of the labels."""

    mode: Literal["whole", "slide"] = "whole"  #: the whole image, or windows of the size of the training crop
    size: int | None = None  #: shorter side to which images are resized; null: their own size
    stride: float = 2 / 3  #: step of the windows, in parts of their size
    scales: tuple[float, ...] = (1.0,)  #: probabilities are averaged over these factors of the size
    flip: bool = False  #: also average over the mirrored image

    def __post_init__(self) -> None:
        require(self, "size", self.size is None or 1 <= self.size <= LARGEST_SIDE, f"must be from 1 to {LARGEST_SIDE}")
        require(self, "stride", 0 < self.stride <= 1, "must lie in (0, 1]")
        fit = bool(self.scales) and min(self.scales) > 0 and max(self.scales) <= LARGEST_SCALE
        require(self, "scales", fit, f"must be numbers {_RANGE}")

    def light(self) -> "InferenceConfig":
        """Return the settings with one scale and without mirroring."""
        return replace(self, scales=(1.0,), flip=False)


@dataclass(frozen=True, kw_only=True)
class MaskMetricsConfig:
    """The primary metric."""

    primary: Literal["miou", "macc", "aacc", "boundary_miou", "boundary_iou"] = "miou"  #: metric used to compare runs


@dataclass(frozen=True, kw_only=True)
class SegmentationConfig:
    """Semantic segmentation of images."""

    data: MaskDataConfig
    augment: MaskAugmentConfig = field(default_factory=MaskAugmentConfig)
    loss: MaskLossConfig = field(default_factory=MaskLossConfig)
    test: InferenceConfig = field(default_factory=InferenceConfig)
    metrics: MaskMetricsConfig = field(default_factory=MaskMetricsConfig)
    head: Literal["upernet", "semantic_fpn", "linear"] = "upernet"  #: decoder
    width: int | None = None  #: width of the decoder; null: 512 for upernet, 256 for semantic_fpn
    pools: tuple[int, ...] = (1, 2, 3, 6)  #: upernet: sides of the pooled grids
    norm: Literal["batch", "group", "sync"] = "batch"  #: norm of the head's layers
    auxiliary: float = 0.4  #: weight of the loss of the auxiliary head, which is used in training only; 0: none
    freeze_norm: bool = False  #: keep the host's batch norms as they are at the start

    def __post_init__(self) -> None:
        require(self, "width", self.width is None or self.width >= 2, "must be at least 2")
        require(self, "pools", bool(self.pools) and min(self.pools) >= 1, "must be positive numbers")
        require(self, "auxiliary", self.auxiliary >= 0, "must not be negative")
