"""Recipe sections shared by image tasks: the data source and the training augmentation."""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from attngraft.strict import FieldError, require
from attngraft.suggest import cut

Crop = Literal["auto", "resized", "pad", "center"]
Check = Literal["auto", "full", "fast", "off"]
Order = Literal["random", "shards"]
MOST_FOLDS = 10_000  #: largest number of folds of cross-validation
_MOST = 1000  #: most repetitions of an image, and erased rectangles
LARGEST_SIDE = 2**12  #: largest side of model inputs, resized and cropped images, in pixels

Separator = Literal["bar", "semicolon", "comma", "space", "none"]


#: supported kinds of sources, for messages
SOURCES = "a folder, .tar, .npz, .csv, .parquet, COCO .json, shards as x-{000..009}.tar, hf:<path>, timm:<name>, digits"


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The data source and its split into training, validation and test.

    Runs are compared on the test split if the source has one; validation then only selects the best epoch. Without
    `val_split`, `val_fraction` and `split_file`, the source's own validation split is used. If the source has no
    splits (class folders, a tar of class folders, `digits`), a random 20% of each class is used for validation.
    With `folds`, training and validation images are divided into folds at random, and the test split is not used.
    """

    numeric: ClassVar[bool] = False  #: whether labels are numbers instead of classes

    source: str  #: `digits`, a folder, .tar, .npz, .csv, .parquet, shards (`x-{0..9}.tar`), `hf:<path>`, `timm:<name>`
    root: str | None = None  #: timm: folder of the data set; .csv, .parquet, COCO: base folder of relative paths
    train_split: str | None = None  #: name of the training split (folder, `<name>.tar`, `x_<name>`)
    val_split: str | None = None  #: name of the validation split
    #: name of the test split; null: `test` or `testing`, if it is not the validation split; none: compare runs on validation
    test_split: str | None = None
    val_fraction: float | None = None  #: fraction of each training class to use for validation, chosen at random
    split_seed: int = 0  #: seed of the random split; independent of the run's seed, so all runs share one split
    classes: tuple[str, ...] | None = None  #: use only these classes, in this order
    cache: bool | None = None  #: keep images in memory; null: those resized to a fixed size, up to 512 MiB per split
    path_column: str | None = None  #: tables: column of paths (hf: of images); null: detected by name
    label_column: str | None = None  #: tables: column of labels or of lists of labels; null: detected by name
    label_columns: tuple[str, ...] | None = None  #: tables: 0/1 columns, one per class, instead of label_column
    label_separator: Separator | None = None  #: separator of label lists; `none`: one label per image; null: detected
    split_column: str | None = None  #: tables: column with the split's name (train, val); null: detected by name
    folds: int | None = None  #: number of folds of cross-validation, set by `attngraft compare --folds`
    fold: int | None = None  #: fold used for validation, from 0; the other folds are used for training
    group_column: str | None = (
        None  #: tables: column of groups (patients, ...), kept whole by a random split and by folds
    )
    split_file: str | None = None  #: split written by `attngraft data check --save-split`, instead of a random one
    order: Order = "random"  #: tars: `shards` reads one shard after another, approximately in the order on disk
    shuffle_buffer: int = 2000  #: `order: shards`: largest distance of an image from its position on disk, in images
    check: Check = "auto"  #: before training: `full` decodes every image, `fast` reads both ends of each file
    #: largest number of unreadable images to skip: a fraction (below 1; at most 100 images) or a number (1 or more)
    max_corrupt: float = 0.01

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise FieldError("source", f"is empty; give {SOURCES}")
        fraction, classes, columns = self.val_fraction, self.classes, self.label_columns
        require(self, "val_fraction", fraction is None or 1e-6 <= fraction < 1, "must lie between 0.000001 and 1")
        alone = fraction is None or self.val_split is None
        require(self, "val_fraction", alone, "cannot be combined with val_split; give only one of them")
        other = self.test_split is None or self.test_split not in (self.train_split, self.val_split)
        require(self, "test_split", other, "is also used for training or validation; name another split, or none")
        require(self, "split_seed", 0 <= self.split_seed < 2**32, "must lie between 0 and 2^32 - 1")
        folds, fold = self.folds, self.fold
        require(self, "folds", folds is None or 2 <= folds <= MOST_FOLDS, f"must be from 2 to {MOST_FOLDS:,}")
        needed = "requires task.data.fold; attngraft compare --folds trains all folds"
        require(self, "folds", folds is None or fold is not None, needed)
        inside = fold is None or (folds is not None and 0 <= fold < folds)
        require(self, "fold", inside, "must be at least 0 and below task.data.folds")
        alone = folds is None or fraction is None
        require(self, "val_fraction", alone, "cannot be combined with folds, which define the validation images")
        small = fraction is None or fraction <= 0.5 or self.group_column is None
        require(self, "val_fraction", small, "must be at most 0.5 with group_column")
        require(self, "classes", classes is None or len(set(classes)) == len(classes), "contains a class twice")
        require(self, "classes", classes is None or len(classes) >= 2, "must name at least two classes")
        alone = columns is None or self.label_column is None
        require(self, "label_columns", alone, "cannot be combined with label_column; give only one of them")
        require(self, "label_columns", columns is None or len(set(columns)) == len(columns), "contains a column twice")
        if self.split_file is not None and (self.val_split is not None or self.val_fraction is not None):
            raise FieldError("split_file", "already defines the validation split; remove val_split and val_fraction")
        require(self, "shuffle_buffer", self.shuffle_buffer >= 1, "must be at least 1")
        require(self, "max_corrupt", self.max_corrupt >= 0, "must not be negative")

    @property
    def splits_train(self) -> bool:
        """Whether validation images are taken from the training split even if there is a validation split."""
        return self.val_fraction is not None or self.split_file is not None


@dataclass(frozen=True, kw_only=True)
class NumbersConfig(DataConfig):
    """The data source of regression: a table, a folder with a table per split, or the generated `bars`.

    `label_column` names one column of numbers, `label_columns` several. Without a validation split, a random 20% of the
    images is used for validation.
    """

    numeric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("classes", "label_separator"):
            if getattr(self, name) is not None:
                raise FieldError(
                    name, "does not apply to numbers; name their columns with --set 'task.data.label_columns=[a,b]'"
                )


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Training augmentation with timm's and torchvision's transforms, applied in the order of the fields.

    `crop: resized` takes a random crop (`scale` and `ratio`) and resizes it to the host's input; `pad` resizes the image to
    the host's input and shifts it by up to `padding` pixels; `center` crops the center, without randomness; `auto` is `pad`
    for images no larger than the host's input and `resized` for others.
    """

    crop: Crop = "auto"  #: how images are cropped
    scale: tuple[float, float] = (0.08, 1.0)  #: `crop: resized`: smallest and largest fraction of the area
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  #: `crop: resized`: smallest and largest aspect ratio (width / height)
    padding: int | None = None  #: `crop: pad`: largest shift in pixels; null: an eighth of the input's shorter side
    #: for resizing; null: the host's; `random` (with `crop: resized`): bilinear or bicubic
    interpolation: str | None = None
    #: probability of a horizontal flip; null: 0.5, or 0 for digits (mirrored digits are not digits)
    hflip: float | None = None
    vflip: float = 0.0  #: probability of a vertical flip
    auto_augment: str | None = None  #: timm policy: `rand-m9-mstd0.5-inc1`, `3a`, `original`, `augmix-m5-w4-d2`
    color_jitter: float | tuple[float, ...] | None = None  #: strength; with auto_augment, only `3a` uses it
    color_jitter_prob: float | None = None  #: probability of color jitter; null: always applied
    grayscale: float = 0.0  #: probability of conversion to grayscale
    blur: float = 0.0  #: probability of Gaussian blur
    erasing: float = 0.0  #: probability of random erasing
    erasing_mode: Literal["const", "rand", "pixel"] = "pixel"  #: fill: zeros, one random color, or noise
    erasing_count: int = 1  #: largest number of erased rectangles per image
    repeats: int = 1  #: repeated augmentation: an epoch uses 1 / `repeats` of the images, each of them `repeats` times
    mixup: float = 0.0  #: alpha of mixup; 0: off
    cutmix: float = 0.0  #: alpha of CutMix; 0: off
    #: CutMix: smallest and largest side of the box as fractions of the image; used instead of alpha
    cutmix_minmax: tuple[float, float] | None = None
    mix_prob: float = 1.0  #: probability that a batch is mixed
    mix_switch_prob: float = 0.5  #: probability of CutMix instead of mixup, if both are on
    mix_mode: Literal["batch", "pair", "elem"] = "batch"  #: one mixing ratio per batch, pair or image
    mix_off_epoch: int | None = None  #: first epoch (0-based) without mixing

    def __post_init__(self) -> None:
        probabilities = ("hflip", "vflip", "color_jitter_prob", "grayscale", "blur", "erasing", "mix_prob")
        for name in (*probabilities, "mix_switch_prob"):
            value = getattr(self, name)
            require(self, name, value is None or 0 <= value <= 1, "must be a probability between 0 and 1")
        for name in ("erasing_count", "repeats"):
            require(self, name, 1 <= getattr(self, name) <= _MOST, f"must lie between 1 and {_MOST}")
        _interval(self, "scale", upper=1.0)
        _interval(self, "ratio")
        _interval(self, "cutmix_minmax", upper=1.0)
        for name in ("mixup", "cutmix", "padding", "mix_off_epoch"):
            value = getattr(self, name)
            require(self, name, value is None or value >= 0, "must not be negative")
        several = "must be one strength, or three or four (brightness, contrast, saturation, optionally hue)"
        jitter = self.color_jitter
        require(self, "color_jitter", not isinstance(jitter, tuple) or len(jitter) in (3, 4), several)
        if self.interpolation is not None:
            _interpolation(self.interpolation, crop=self.crop)
        if self.auto_augment is not None:
            _auto_augment(self.auto_augment)

    @property
    def mixes(self) -> bool:
        """Whether mixup or CutMix is on."""
        return self.mixup > 0 or self.cutmix > 0 or self.cutmix_minmax is not None


def _interval(config: AugmentConfig, name: str, *, upper: float = float("inf")) -> None:
    value = getattr(config, name)
    holds = value is None or 0 < value[0] <= value[1] <= upper
    require(config, name, holds, f"must be two increasing positive numbers{'' if upper > 1 else ' up to 1'}")


def _interpolation(name: str, *, crop: Crop) -> None:
    known = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")
    if name == "random" and crop in ("pad", "center"):
        raise FieldError("interpolation", f"random requires crop=resized, not {crop}")
    if name != "random" and name not in known:
        raise FieldError("interpolation", f"unknown {name!r}; allowed: random, {', '.join(known)}")


def _auto_augment(text: str) -> None:
    """Check that timm accepts the policy, before the first image is loaded."""
    # local import: `attngraft data check` imports this module and should not wait for timm
    from timm.data.auto_augment import augment_and_mix_transform, auto_augment_transform, rand_augment_transform

    counts = re.findall(r"-[nwd](\d+)", text)  # of operations one after the other
    if any(len(count) > 2 for count in counts):
        raise FieldError("auto_augment", f"{cut(text)} has a number of operations above 99; use fewer")
    if text.startswith("rand"):
        build = rand_augment_transform
    elif text.startswith("augmix"):
        build = augment_and_mix_transform
    else:
        build = auto_augment_transform
    try:
        build(text, {"translate_const": 10, "img_mean": (128, 128, 128)})
    except (AssertionError, KeyError, ValueError, IndexError) as error:
        reason = f" ({error})" if str(error) else ""
        raise FieldError(
            "auto_augment", f"timm cannot read {text!r}{reason}; try rand-m9-mstd0.5-inc1, 3a, original"
        ) from None


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """Where annotated images come from, and their split into training, validation and test."""

    source: str  #: where the data are
    val_fraction: float | None = None  #: fraction of the training images to use for validation, chosen at random
    split_seed: int = 0  #: seed of the random split; independent of the run's seed, so all runs share one split
    split_file: str | None = None  #: file with a saved split, used instead of a random split
    folds: int | None = None  #: number of folds of cross-validation, set by `attngraft compare --folds`
    fold: int | None = None  #: fold used for validation, from 0; the other folds are used for training

    def __post_init__(self) -> None:
        self.as_images()  # checks the split

    def as_images(self) -> DataConfig:
        """Return the settings of the split."""
        names = ("source", "val_fraction", "split_seed", "split_file", "folds", "fold")
        return DataConfig(**{name: getattr(self, name) for name in names})
