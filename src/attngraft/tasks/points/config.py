"""The recipe's `task` section for classes of point clouds, and for parts of their points."""

from dataclasses import dataclass, field
from typing import Literal

from attngraft.strict import FieldError, require
from attngraft.tasks.classification.config import LossConfig
from attngraft.tasks.classification.config import MetricsConfig as ClassMetricsConfig
from attngraft.tasks.images.config import DataConfig

MOST_POINTS = 1_000_000  #: of a cloud; more fill the memory
LARGEST = 100  #: factor, shift or noise of the augmentation, relative to the unit ball


@dataclass(frozen=True, kw_only=True)
class PointDataConfig:
    """Point clouds, and their split into training, validation and test.

    Without a part for validation, a random part of each class of the training part is used.
    """

    #: a .npz with x_train and y_train, a folder train/<class>/ of .txt, .npy, .off, .ply or .pcd files, or ModelNet40 or
    #: ShapeNetPart as published
    source: str
    normals: bool | None = None  #: whether models get normals; null: if all clouds have them
    normalize: bool = True  #: move the mean of each cloud to the origin, and divide by the largest distance from it
    #: test: the test part also picks the best epoch, as in the authors' code, which overestimates the result
    validation: Literal["part", "test"] = "part"
    val_fraction: float | None = None  #: fraction of the training clouds (of each class) to use for validation
    split_seed: int = 0  #: seed of the random split; independent of the run's seed, so all runs share one split
    split_file: str | None = None  #: file with a saved split, used instead of a random split
    folds: int | None = None  #: number of folds of cross-validation, set by `attngraft compare --folds`
    fold: int | None = None  #: fold used for validation, from 0; the other folds are used for training
    check: Literal["auto", "off"] = "auto"  #: off: train even if validation or test clouds are in the training part

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise FieldError("source", "is empty; give a .npz file or a folder of point clouds")
        self.as_division()  # checks the split

    def as_division(self) -> DataConfig:
        """Return the settings of the split."""
        names = ("source", "val_fraction", "split_seed", "split_file", "folds", "fold")
        return DataConfig(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class PointAugmentConfig:
    """Training augmentation: random scale, shift, rotation and noise of coordinates.

    Normals follow the scale and the rotation. The order of points is random, too.
    """

    scale: tuple[float, float] = (2 / 3, 1.5)  #: smallest and largest factor, uniform, drawn for each axis
    shift: float = 0.2  #: largest shift along each axis, uniform
    rotate: Literal["none", "x", "y", "z"] = "none"  #: axis of rotations by any angle; the vertical axis, if it varies
    noise: float = 0.0  #: standard deviation of normal noise of each coordinate, up to 5 of them

    def __post_init__(self) -> None:
        low, high = self.scale
        require(self, "scale", 0 < low <= high <= LARGEST, f"must be two increasing numbers above 0, at most {LARGEST}")
        for name in ("shift", "noise"):
            require(self, name, 0 <= getattr(self, name) <= LARGEST, f"must be between 0 and {LARGEST}")


@dataclass(frozen=True, kw_only=True)
class PointTestConfig:
    """Final predictions."""

    #: predictions whose probabilities are averaged: the cloud, and copies scaled by 0.85 to 1.15 along each axis
    votes: int = 1

    def __post_init__(self) -> None:
        require(self, "votes", self.votes >= 1, "must be at least 1")


@dataclass(frozen=True, kw_only=True)
class PointsConfig:
    """Classification of point clouds."""

    data: PointDataConfig
    points: int = 1024  #: points of a cloud that models get, in training and evaluation
    #: which of more points: the first of the file; random: in training other ones in each epoch; repeated: random with
    #: replacement, also of clouds with fewer points
    sample: Literal["first", "random", "repeated"] = "first"
    augment: PointAugmentConfig = field(default_factory=PointAugmentConfig)
    test: PointTestConfig = field(default_factory=PointTestConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    metrics: ClassMetricsConfig = field(default_factory=ClassMetricsConfig)

    def __post_init__(self) -> None:
        require(self, "points", 1 <= self.points <= MOST_POINTS, f"must be between 1 and {MOST_POINTS:,}")


@dataclass(frozen=True, kw_only=True)
class PartMetricsConfig:
    """The primary metric.

    The IoU of a shape is the mean over the parts of its category. Conventions differ in the parts that can be predicted, and
    in those that count:

        present    argmax over the parts of all categories; parts that occur in the shape (PointMLP, BiXT)
        category   argmax over the category's parts; all of them, with IoU 1 if neither predicted nor there (PointNet++)
        all        argmax over the parts of all categories; all parts of the category, with IoU 1 likewise
    """

    #: metric used to compare runs: mean over shapes, or over categories of the mean over their shapes
    primary: Literal[
        "instance_miou_present",
        "instance_miou_category",
        "instance_miou_all",
        "class_miou_present",
        "class_miou_category",
        "class_miou_all",
        "accuracy",
    ] = "instance_miou_present"


@dataclass(frozen=True, kw_only=True)
class PartTestConfig(PointTestConfig):
    """Final predictions."""

    #: all: points that the model does not get have the part of the nearest point that it gets; sampled: only the points
    #: that the model gets are judged, as in the authors' code
    judged: Literal["all", "sampled"] = "all"


@dataclass(frozen=True, kw_only=True)
class PointPartsConfig:
    """Segmentation of point clouds into parts, for shapes whose category is known."""

    data: PointDataConfig
    points: int = 2048  #: points of a cloud that models get, in training and evaluation
    #: which of more points: see the task `points`; repeated is that of the authors' code
    sample: Literal["first", "random", "repeated"] = "random"
    augment: PointAugmentConfig = field(default_factory=PointAugmentConfig)
    test: PartTestConfig = field(default_factory=PartTestConfig)
    smoothing: float = 0.0  #: label smoothing: fraction of each label spread over all parts
    metrics: PartMetricsConfig = field(default_factory=PartMetricsConfig)

    def __post_init__(self) -> None:
        require(self, "points", 1 <= self.points <= MOST_POINTS, f"must be between 1 and {MOST_POINTS:,}")
        require(self, "smoothing", 0 <= self.smoothing < 1, "must lie in [0, 1)")
