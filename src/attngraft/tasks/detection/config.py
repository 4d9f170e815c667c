"""The recipe's `task` section for detection."""

from dataclasses import dataclass, field
from typing import Literal

from attngraft.strict import FieldError, require
from attngraft.tasks.images.config import LARGEST_SIDE, SplitConfig

Head = Literal["faster_rcnn", "mask_rcnn", "cascade_mask_rcnn"]
Primary = Literal["box_ap", "box_ap50", "box_ap75", "mask_ap", "mask_ap50", "mask_ap75"]
PRIMARY: dict[Head, Primary] = {
    "faster_rcnn": "box_ap",
    "mask_rcnn": "mask_ap",
    "cascade_mask_rcnn": "mask_ap",
}  #: by head

_WIDEST, _DEEPEST = 2**13, 64  #: of the heads


@dataclass(frozen=True, kw_only=True)
class ObjectDataConfig(SplitConfig):
    """Images with boxes or instance masks, and their split into training, validation and test.

    Without a part for validation, a random part of the training images is used.
    """

    source: str  #: a folder with COCO annotations, instance masks, YOLO labels or Pascal VOC annotations
    #: kind of annotations; null: the one that is found
    format: Literal["coco", "masks", "yolo", "voc"] | None = None
    images: str | None = None  #: name of the folder of images; null: images, JPEGImages, ...
    masks: str | None = None  #: name of the folder of instance masks; null: masks, labels, ...

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise FieldError("source", "is empty; give a folder with images and their annotations")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class ObjectAugmentConfig:
    """Training augmentation of image, boxes and masks together."""

    #: shorter sides, one of which is drawn for each image; empty: the image's own size
    size: tuple[int, ...] = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
    longest: int = 1333  #: limit of the longer side after resizing
    #: probability of a crop before resizing: shorter side of 400, 500 or 600, then a crop with sides of 384 to 600
    crop_first: float = 0.0
    crop: tuple[int, int] | None = None  #: height and width of a random crop after resizing; smaller images are padded
    hflip: float = 0.5  #: probability of a horizontal flip
    vflip: float = 0.0  #: probability of a vertical flip
    rotate: bool = False  #: rotate by a random multiple of 90 degrees
    photometric: bool = False  #: random brightness, contrast, saturation and hue

    def __post_init__(self) -> None:
        require(self, "size", all(side >= 1 for side in self.size), "must be positive numbers")
        low, high = max(self.size, default=1), LARGEST_SIDE
        require(self, "longest", low <= self.longest <= high, f"must be at least the shorter side, at most {high}")
        fit = self.crop is None or 1 <= min(self.crop) <= max(self.crop) <= high
        require(self, "crop", fit, f"must be height and width, from 1 to {high}")
        for name in ("crop_first", "hflip", "vflip"):
            require(self, name, 0 <= getattr(self, name) <= 1, "must be a probability between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class DetectionTestConfig:
    """Inference. Detections have the coordinates of the original image."""

    size: int | None = 800  #: shorter side to which images are resized; null: their own size
    longest: int = 1333  #: limit of the longer side
    min_score: float = 0.05  #: detections below are dropped
    nms: float = 0.5  #: IoU above which the weaker of two boxes of a class is dropped
    #: most detections of an image; also `maxDets` of the average precision, the most of a class in an image
    detections: int = 100

    def __post_init__(self) -> None:
        require(self, "size", self.size is None or self.size >= 1, "must be at least 1")
        low, high = self.size or 1, LARGEST_SIDE
        require(self, "longest", low <= self.longest <= high, f"must be at least the shorter side, at most {high}")
        require(self, "min_score", 0 <= self.min_score < 1, "must lie in [0, 1)")
        require(self, "nms", 0 < self.nms <= 1, "must lie in (0, 1]")
        require(self, "detections", 1 <= self.detections <= 10_000, "must be between 1 and 10,000")


@dataclass(frozen=True, kw_only=True)
class DetectionMetricsConfig:
    """The primary metric."""

    #: metric used to compare runs; null: mask_ap for heads with masks, else box_ap
    primary: Primary | None = None


@dataclass(frozen=True, kw_only=True)
class DetectionConfig:
    """Detection of objects in images, with or without instance masks."""

    data: ObjectDataConfig
    augment: ObjectAugmentConfig = field(default_factory=ObjectAugmentConfig)
    test: DetectionTestConfig = field(default_factory=DetectionTestConfig)
    metrics: DetectionMetricsConfig = field(default_factory=DetectionMetricsConfig)
    head: Head = "mask_rcnn"  #: detector
    #: papers: L1 and GIoU losses, low-quality matches, aligned RoIAlign with an adaptive number of samples; torchvision:
    #: the losses, matching and pooling of torchvision's detectors
    options: Literal["papers", "torchvision"] = "papers"
    width: int = 256  #: channels of the feature pyramid and of the mask head
    box_width: int = 1024  #: width of the box head
    mask_layers: int = 4  #: number of convolutions of the mask head
    samples: int = 512  #: boxes per image on which heads are trained, at most a quarter of them with an object
    anchors: tuple[int, ...] = (32, 64, 128, 256, 512)  #: side of the anchors of each of the five levels, in pixels
    freeze_norm: bool = False  #: keep the host's batch norms as they are at the start

    def __post_init__(self) -> None:
        for name in ("width", "box_width", "samples"):
            require(self, name, 1 <= getattr(self, name) <= _WIDEST, f"must be between 1 and {_WIDEST}")
        require(self, "mask_layers", 0 <= self.mask_layers <= _DEEPEST, f"must be between 0 and {_DEEPEST}")
        fit = len(self.anchors) == 5 and min(self.anchors) >= 1 and max(self.anchors) <= LARGEST_SIDE
        require(self, "anchors", fit, f"must be five positive numbers, at most {LARGEST_SIDE}")
        if self.head == "faster_rcnn" and (self.metrics.primary or "").startswith("mask"):
            raise FieldError(
                "metrics.primary", f"is {self.metrics.primary}, but the head faster_rcnn predicts no masks"
            )
