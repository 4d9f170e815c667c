"""Where images come from and what training does to them: the parts of a recipe that tasks on images share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attngraft.strict import FieldError

Crop = Literal["auto", "resized", "pad", "center"]
Check = Literal["auto", "full", "fast", "off"]
Order = Literal["random", "shards"]
Separator = Literal["bar", "semicolon", "comma", "space", "none"]


#: what a source may be, for messages
SOURCES = "a folder, .tar, .npz, .csv, .parquet, COCO .json, shards as x-{000..009}.tar, hf:<path>, timm:<name>, digits"


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the images are and how they are split.

    Without `val_split`, `val_fraction` and `split_file` the data's own validation part is used where it has one; where it
    has no parts at all (class folders, a tar of class folders, `digits`), a fifth of each class is drawn.
    """

    source: str  #: `digits`, a folder, .tar, .npz, .csv, .parquet, shards (`x-{0..9}.tar`), `hf:<path>`, `timm:<name>`
    root: str | None = None  #: timm: where it keeps its files; .csv and .parquet: where their relative paths begin
    train_split: str | None = None  #: name of the training part (folder, `<name>.tar`, `x_<name>`)
    val_split: str | None = None  #: name of the validation part
    val_fraction: float | None = None  #: draw this share of each training class for validation
    split_seed: int = 0  #: of that draw; apart from the run's seed, so that all runs see one split
    classes: tuple[str, ...] | None = None  #: use only these classes, in this order
    cache: bool | None = None  #: keep decoded images in memory; null: fixed views up to half a gigabyte
    path_column: str | None = None  #: tables: the column of paths (hf: of images); null: told by its name
    label_column: str | None = None  #: tables: the column of labels, or of lists of labels; null: told by its name
    label_columns: tuple[str, ...] | None = None  #: tables: a column of 0 and 1 for each class, instead of label_column
    label_separator: Separator | None = None  #: of label lists; `none`: single labels, whatever they hold; null: found
    split_column: str | None = None  #: tables: the column that says train or val; null: told by its name
    split_file: str | None = None  #: a split that `attngraft data check --save-split` wrote, instead of drawing one
    order: Order = "random"  #: tars: `shards` trains on one after the other, near the order in which images lie in them
    shuffle_buffer: int = 2000  #: of `order: shards`: images move by up to so many places from that order
    check: Check = "auto"  #: before training, `full`: decode every image; `fast`: read its two ends; `off`
    max_corrupt: float = 0.01  #: unreadable images to leave out: a share (below 1; 100 at most), or a number (from 1)

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise FieldError("source", f"must name the data ({SOURCES})")
        if self.val_fraction is not None and not 0 < self.val_fraction < 1:
            raise FieldError("val_fraction", f"must lie between 0 and 1, is {self.val_fraction}")
        if self.val_fraction is not None and self.val_split is not None:
            raise FieldError("val_fraction", "draws the validation part, val_split names it; give only one of them")
        if self.split_seed < 0:
            raise FieldError("split_seed", f"must not be negative, is {self.split_seed}")
        if self.classes is not None and len(set(self.classes)) != len(self.classes):
            raise FieldError("classes", "names a class twice")
        if self.classes is not None and len(self.classes) < 2:
            raise FieldError("classes", "must name at least two classes")
        if self.label_columns is not None and self.label_column is not None:
            raise FieldError("label_columns", "are a column for each class, label_column is one; give only one of them")
        if self.label_columns is not None and len(set(self.label_columns)) != len(self.label_columns):
            raise FieldError("label_columns", "names a column twice")
        if self.split_file is not None and (self.val_split is not None or self.val_fraction is not None):
            raise FieldError("split_file", "says what is validation; give it without val_split and val_fraction")
        if self.shuffle_buffer < 1:
            raise FieldError("shuffle_buffer", f"must be at least 1, is {self.shuffle_buffer}")
        if self.max_corrupt < 0:
            raise FieldError("max_corrupt", f"must not be negative, is {self.max_corrupt}")

    @property
    def draws(self) -> bool:
        """Whether the validation part is taken out of the training part, whatever else the data have."""
        return self.val_fraction is not None or self.split_file is not None


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """What training does to images. Everything is timm's or torchvision's; the fields' order is that of the work.

    `crop`: `resized` a random part of the area, `scale` and `ratio`, resized to the host's input; `pad` the image at the
    host's input size, shifted by up to `padding` pixels; `center` no randomness; `auto` `pad` where images are no larger
    than the host's input, else `resized`.
    """

    crop: Crop = "auto"  #: which part of the image is seen
    scale: tuple[float, float] = (0.08, 1.0)  #: `resized`: least and largest share of the area
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  #: `resized`: least and largest width over height
    padding: int | None = None  #: null: an eighth of the input's shorter side
    interpolation: str | None = None  #: null: the host's; `random`: bilinear or bicubic, with `crop: resized`
    hflip: float | None = None  #: probability; null: 0.5, and 0 for digits, which have no mirror images
    vflip: float = 0.0  #: probability
    auto_augment: str | None = (
        None  #: timm's notation: `rand-m9-mstd0.5-inc1`, `3a` (3-Augment), `original`, `augmix-m5-w4-d2`
    )
    color_jitter: float | tuple[float, ...] | None = None  #: strength; ignored beside auto_augment, `3a` excepted
    color_jitter_prob: float | None = None  #: null: always
    grayscale: float = 0.0  #: probability
    blur: float = 0.0  #: probability
    erasing: float = 0.0  #: probability of random erasing
    erasing_mode: Literal["const", "rand", "pixel"] = "pixel"  #: what erased parts hold: zeros, one random color, noise
    erasing_count: int = 1  #: parts erased at most
    repeats: int = 1  #: repeated augmentation: an epoch takes one in `repeats` images, each so many times in a row
    mixup: float = 0.0  #: alpha; 0: off
    cutmix: float = 0.0  #: alpha; 0: off
    cutmix_minmax: tuple[float, float] | None = None  #: sides of the part as shares of the image; replaces alpha
    mix_prob: float = 1.0  #: probability that a batch is mixed
    mix_switch_prob: float = 0.5  #: probability of cutmix where both are on
    mix_mode: Literal["batch", "pair", "elem"] = "batch"  #: one share for a batch, a pair, or each image
    mix_off_epoch: int | None = None  #: first epoch (0-based) without mixing

    def __post_init__(self) -> None:
        for name in (
            "hflip",
            "vflip",
            "color_jitter_prob",
            "grayscale",
            "blur",
            "erasing",
            "mix_prob",
            "mix_switch_prob",
        ):
            _probability(self, name)
        for name in ("mixup", "cutmix"):
            if getattr(self, name) < 0:
                raise FieldError(name, f"is a strength and must not be negative, is {getattr(self, name)}")
        for name in ("erasing_count", "repeats"):
            if getattr(self, name) < 1:
                raise FieldError(name, f"must be at least 1, is {getattr(self, name)}")
        _interval(self, "scale", upper=1.0)
        _interval(self, "ratio")
        _interval(self, "cutmix_minmax", upper=1.0)
        if self.padding is not None and self.padding < 0:
            raise FieldError("padding", f"must not be negative, is {self.padding}")
        if self.mix_off_epoch is not None and self.mix_off_epoch < 0:
            raise FieldError("mix_off_epoch", f"must not be negative, is {self.mix_off_epoch}")
        if isinstance(self.color_jitter, tuple) and len(self.color_jitter) not in (3, 4):
            raise FieldError(
                "color_jitter", "is one strength, or three or four (brightness, contrast, saturation, hue)"
            )
        if self.interpolation is not None:
            _interpolation(self.interpolation, crop=self.crop)
        if self.auto_augment is not None:
            _auto_augment(self.auto_augment)

    @property
    def mixes(self) -> bool:
        """Whether batches are mixed at all."""
        return self.mixup > 0 or self.cutmix > 0 or self.cutmix_minmax is not None


def _probability(config: AugmentConfig, name: str) -> None:
    value = getattr(config, name)
    if value is not None and not 0 <= value <= 1:
        raise FieldError(name, f"is a probability and must lie between 0 and 1, is {value}")


def _interval(config: AugmentConfig, name: str, *, upper: float = float("inf")) -> None:
    value = getattr(config, name)
    if value is not None and not 0 < value[0] <= value[1] <= upper:
        raise FieldError(
            name, f"must be two rising positive numbers{'' if upper > 1 else ' up to 1'}, is {list(value)}"
        )


def _interpolation(name: str, *, crop: Crop) -> None:
    known = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")
    if name == "random" and crop in ("pad", "center"):
        raise FieldError("interpolation", f"random needs crop: resized, not {crop}")
    if name != "random" and name not in known:
        raise FieldError("interpolation", f"{name!r} is not known; allowed: random, {', '.join(known)}")


def _auto_augment(text: str) -> None:
    """Let timm read it now: a mistake should not wait for the first image."""
    from timm.data.auto_augment import augment_and_mix_transform, auto_augment_transform, rand_augment_transform

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
