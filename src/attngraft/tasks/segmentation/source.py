"""Images with masks: layouts of folders, class files, and masks as label maps.

    images/NAME.jpg, masks/NAME.png;  images/SPLIT/..., masks/SPLIT/...;  SPLIT/images/..., SPLIT/masks/...
    ADE20K: images/training, annotations/training, ...;  Cityscapes: leftImg8bit/SPLIT/CITY, gtFine/SPLIT/CITY
    COCO: annotations/panoptic_SPLIT.json or annotations/instances_SPLIT.json (see `coco`)

Images and masks are matched by path and name without the extension (Cityscapes: without the last part of the name).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

from attngraft.errors import DataError
from attngraft.image_files import open_image
from attngraft.opening import DAMAGE, open_regular, read_text
from attngraft.suggest import did_you_mean
from attngraft.tasks.images.boundaries import IGNORED
from attngraft.tasks.images.sources.decoding import UnreadableImage, decode, in_mode
from attngraft.tasks.images.sources.splitting import divide
from attngraft.tasks.segmentation.coco import CocoSplit, coco_files, read_coco
from attngraft.tasks.segmentation.config import MaskDataConfig

IMAGES = ("images", "image", "imgs", "img", "JPEGImages", "leftImg8bit")
MASKS = ("masks", "mask", "labels", "label", "annotations", "annotation", "SegmentationClass", "gtFine", "gt")
SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}
UNLABELED = {"void", "unlabeled", "unlabelled", "ignore", "ignored", "unknown"}  #: names of labels that are no classes
_EXTENSIONS = {".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp"}
_LOSSY = {".jpg", ".jpeg"}
_ENDS = {"leftImg8bit": "_leftImg8bit", "gtFine": "_gtFine_labelIds"}  #: Cityscapes: ends of names
_ADE20K = "objectInfo150.txt"  #: names of the classes of ADE20K
_SAMPLE = 4000  #: largest number of masks of a split that are read before training
_BLOCK = 2**24  #: number of pixels whose colors are converted at once
_LISTED = 10  #: most masks with mistakes that are listed

#: Cityscapes: the 19 evaluated classes by label id, and their colors
CITYSCAPES = {
    7: ("road", (128, 64, 128)),
    8: ("sidewalk", (244, 35, 232)),
    11: ("building", (70, 70, 70)),
    12: ("wall", (102, 102, 156)),
    13: ("fence", (190, 153, 153)),
    17: ("pole", (153, 153, 153)),
    19: ("traffic light", (250, 170, 30)),
    20: ("traffic sign", (220, 220, 0)),
    21: ("vegetation", (107, 142, 35)),
    22: ("terrain", (152, 251, 152)),
    23: ("sky", (70, 130, 180)),
    24: ("person", (220, 20, 60)),
    25: ("rider", (255, 0, 0)),
    26: ("car", (0, 0, 142)),
    27: ("truck", (0, 0, 70)),
    28: ("bus", (0, 60, 100)),
    31: ("train", (0, 80, 100)),
    32: ("motorcycle", (0, 0, 230)),
    33: ("bicycle", (119, 11, 32)),
}

Color = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Meaning of the values of masks."""

    classes: tuple[str, ...]
    colors: tuple[Color, ...]
    table: np.ndarray  #: (256,) class of each value, `IGNORED`, or -1 for values without a class
    rgb: Mapping[int, int] | None = None  #: packed color -> class, for RGB masks; None: masks have values
    coco: Mapping[Path, CocoSplit] = field(default_factory=dict)  #: COCO annotations with the label map, by mask

    def read(self, path: Path) -> np.ndarray:
        """Return the label map (H, W) uint8 of a mask.

        Raises:
            DataError: the file is not such a mask, or has a value without a class.
        """
        if self.coco:
            return self.table[self.coco[path].labels(path)].astype(np.uint8)
        try:
            with open_regular(path) as file, open_image(file) as image:
                if self.rgb is not None:
                    return self._of_colors(np.asarray(image.convert("RGB")), path, self.rgb)
                if image.mode not in ("P", "L", "1", "I", "I;16"):
                    raise DataError(
                        f"{path}: a mask in mode {image.mode}; masks have one value per pixel, or, with a class file whose "
                        "lines are `name r g b` (--set task.data.classes_file=FILE), colors"
                    )
                values = np.asarray(image)
        except DAMAGE as error:
            raise DataError(f"{path}: cannot be read as a mask ({error}); replace the file") from None
        if values.size and int(values.max()) > 255:
            raise DataError(f"{path}: contains the label {int(values.max())}; labels are 0 to 254, and 255 is ignored")
        found = self.table[values.astype(np.uint8)]
        if found.size and found.min() < 0:
            label = int(values[found < 0][0])
            raise DataError(
                f"{path}: contains the label {label}, but there are {len(self.classes)} classes; correct the mask, add a "
                f"line to the class file, or ignore it with --set 'task.data.ignore=[{label}]'"
            )
        return found.astype(np.uint8)

    def _of_colors(self, pixels: np.ndarray, path: Path, classes_of: Mapping[int, int]) -> np.ndarray:
        if pixels.shape[0] * pixels.shape[1] > _BLOCK:  # the packed colors take 24 times as much memory
            blocks = np.array_split(pixels, -(-pixels.shape[0] * pixels.shape[1] // _BLOCK))
            return np.concatenate([self._of_colors(block, path, classes_of) for block in blocks if len(block)])
        packed = pixels.astype(np.int64) @ np.array([65536, 256, 1])
        values, inverse = np.unique(packed, return_inverse=True)
        classes = np.array([classes_of.get(int(value), -1) for value in values])
        if (classes < 0).any():
            value = int(values[classes < 0][0])
            color = f"{value >> 16} {value >> 8 & 255} {value & 255}"
            raise DataError(
                f"{path}: contains the color {color}, which the class file does not list; add a line for it"
            )
        labels: np.ndarray = classes.astype(np.uint8)[inverse].reshape(packed.shape)
        return labels


@dataclass(frozen=True, kw_only=True)
class MaskedImages:
    """Images and masks of a split, opened on access."""

    names: tuple[str, ...]
    images: tuple[Path, ...]
    masks: tuple[Path, ...]
    labels: Labels

    def __len__(self) -> int:
        return len(self.names)

    def take(self, indices: np.ndarray) -> MaskedImages:
        """Return some of the images."""
        return MaskedImages(
            names=tuple(self.names[i] for i in indices),
            images=tuple(self.images[i] for i in indices),
            masks=tuple(self.masks[i] for i in indices),
            labels=self.labels,
        )

    def joined(self, other: MaskedImages) -> MaskedImages:
        """Return the images of both, with the labels of this one."""
        return MaskedImages(
            names=self.names + other.names,
            images=self.images + other.images,
            masks=self.masks + other.masks,
            labels=self.labels,
        )

    def image(self, index: int) -> Image.Image:
        """Return an image in mode RGB.

        Raises:
            DataError: the file cannot be read.
        """
        return read_image(self.images[index])

    def label(self, index: int) -> np.ndarray:
        """Return the label map (H, W) uint8 of an image.

        Raises:
            DataError: the mask cannot be read, or has another size than its image.
        """
        return self.labels.read(self.masks[index])


@dataclass(frozen=True, kw_only=True)
class MaskSource:
    """Images with masks, split."""

    where: str
    labels: Labels
    train: MaskedImages
    val: MaskedImages
    test: MaskedImages | None
    origin: str  #: description of the split, for the report
    drawn: Mapping[str, MaskedImages] = field(
        default_factory=dict
    )  #: parts of a random split; empty if it is not random
    notes: tuple[str, ...] = ()

    def parts(self) -> dict[str, MaskedImages]:
        """Return the images of each split."""
        return {"train": self.train, "val": self.val} | ({} if self.test is None else {"test": self.test})


def read_image(path: Path) -> Image.Image:
    """Return an image file in mode RGB, upright.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with open_regular(path) as stream:
            return in_mode(decode(stream, where=str(path)), "RGB")
    except UnreadableImage as error:
        raise DataError(f"{path}: cannot be read as an image ({error.reason}); replace or remove it") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); replace or remove it") from None


def image_size(path: Path) -> tuple[int, int]:
    """Return the width and height of an image, upright, from its header.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with open_regular(path) as file, open_image(file) as image:
            turned = image.getexif().get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)
            return image.size[::-1] if turned else image.size
    except DAMAGE as error:
        raise DataError(f"{path}: cannot be read as an image ({error}); replace or remove it") from None


def open_masks(config: MaskDataConfig, *, saved_split: Path | None = None) -> MaskSource:
    """Find images and masks, read the class file, and split the images; `saved_split` replaces the random split.

    Raises:
        DataError: the data cannot be used; the message names the file and the remedy.
    """
    root = Path(config.source).expanduser()
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; give a folder with images and masks (task.data.source)")
    pairs: Mapping[str, Pairs]
    if config.masks is None and coco_files(root):
        coco, listed = read_coco(root, SPLITS)
        pairs = {split: found.names for split, found in coco.items()}
        labels = _coco_labels(root, config, coco, listed)
    else:
        pairs = _pairs(root, config)
        labels = _labels(root, config, [mask for found in pairs.values() for _, _, mask in found])
    parts = {
        split: MaskedImages(
            names=tuple(name for name, _, _ in found),
            images=tuple(image for _, image, _ in found),
            masks=tuple(mask for _, _, mask in found),
            labels=labels,
        )
        for split, found in pairs.items()
    }
    train, val, test = (parts.get(split) for split in SPLITS)
    if train is None:
        raise DataError(f"{root}: no training images (folders train or training); found only {', '.join(parts)}")
    origin, drawn, notes = "the folders of the data", dict[str, MaskedImages](), tuple[str, ...]()
    settings = config.as_images()
    if val is None or settings.splits_train or settings.folds is not None:
        if settings.folds is not None and val is not None:
            train = train.joined(val)
        division = divide(
            train,
            np.zeros(len(train)),  # numbers are split without stratification
            settings,
            where=str(root),
            origin="the images",
            classes=(),
            saved_split=saved_split,
        )
        if settings.split_file is None:
            drawn = {name: train.take(indices) for name, indices in division.indices().items()}
        origin, notes = division.origin, tuple(division.notes)
        train, val = train.take(np.flatnonzero(~division.in_val)), train.take(np.flatnonzero(division.in_val))
    for name, images in {"training": train, "validation": val}.items():
        if not len(images):
            raise DataError(f"{root}: no images for {name} ({origin}); add some, or change the split")
    return MaskSource(
        where=str(root), labels=labels, train=train, val=val, test=test, origin=origin, drawn=drawn, notes=notes
    )


def has_masks(root: Path) -> bool:
    """Return whether a folder, or the folder of a split in it, contains folders of images and of masks as image files."""
    for folder in (root, *(found for split in SPLITS if (found := _split_folder(root, split)))):
        images, masks = _side(folder, None, IMAGES), _side(folder, None, MASKS)
        if images is not None and masks is not None:
            return all(any(path.suffix.lower() in _EXTENSIONS for path in side.rglob("*")) for side in (images, masks))
    return False


def count_labels(images: MaskedImages) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Check the masks of a split, or an even sample of 4,000 of them.

    Returns:
        Number of pixels of each class and, last, of ignored pixels (K + 1,), and the sizes (width, height) of the images.

    Raises:
        DataError: masks cannot be used, or have another size than their image; the message has a line for each of up to 10.
    """
    classes = len(images.labels.classes)

    def attempt(index: int) -> tuple[np.ndarray, tuple[int, int]] | str:
        try:
            return count(index)
        except DataError as error:
            return str(error)

    def count(index: int) -> tuple[np.ndarray, tuple[int, int]]:
        label = images.label(index)
        size = image_size(images.images[index])
        if label.shape != size[::-1]:
            raise DataError(
                f"{images.masks[index]}: {label.shape[1]} x {label.shape[0]}, but its image {images.images[index].name} is "
                f"{size[0]} x {size[1]}; make them the same size"
            )
        counts = np.bincount(label.reshape(-1), minlength=256)
        return np.append(counts[:classes], counts[IGNORED]), size

    step = max(1, -(-len(images) // _SAMPLE))
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        results = list(threads.map(attempt, range(0, len(images), step)))
    if mistakes := [each for each in results if isinstance(each, str)]:
        more = [f"and {len(mistakes) - _LISTED} more masks"] if len(mistakes) > _LISTED else []
        raise DataError("\n".join(mistakes[:_LISTED] + more))
    found = [each for each in results if not isinstance(each, str)]
    return np.sum([counts for counts, _ in found], axis=0), [size for _, size in found]


# -- folders -----------------------------------------------------------------------------------------------------------

Pairs = list[tuple[str, Path, Path]]  #: name, image, mask


def _pairs(root: Path, config: MaskDataConfig) -> dict[str, Pairs]:
    """Return the images and masks of each split; those of a folder without splits are `train`."""
    images, masks = (_side(root, name, usual) for name, usual in ((config.images, IMAGES), (config.masks, MASKS)))
    if images is not None and masks is not None:
        sides = {split: (_split_folder(images, split), _split_folder(masks, split)) for split in SPLITS}
        found = {split: both for split, both in sides.items() if both[0] is not None}
        return {
            split: _matched(one, other, root, images.name, masks.name)
            for split, (one, other) in (found or {"train": (images, masks)}).items()
            if one is not None
        }
    result = {}
    for split in SPLITS:
        folder = _split_folder(root, split)
        if folder is not None:
            one, other = (
                _side(folder, name, usual) for name, usual in ((config.images, IMAGES), (config.masks, MASKS))
            )
            if one is None or other is None:
                raise DataError(_no_folders(folder, config))
            result[split] = _matched(one, other, root, one.name, other.name)
    if not result:
        raise DataError(_no_folders(root, config))
    return result


def _no_folders(root: Path, config: MaskDataConfig) -> str:
    present = sorted(path.name for path in root.iterdir() if path.is_dir())
    wanted = f"{config.images or 'images'} and {config.masks or 'masks'}"
    return (
        f"{root}: no folders {wanted} there (found: {', '.join(present[:8]) or 'no folders'}); name them with --set "
        "task.data.images=NAME and --set task.data.masks=NAME, or, if the folders are classes, use --task classification"
    )


def _side(root: Path, name: str | None, usual: Sequence[str]) -> Path | None:
    names = usual if name is None else (name,)
    return next((root / each for each in names if (root / each).is_dir()), None)


def _split_folder(root: Path, split: str) -> Path | None:
    return next((root / name for name in SPLITS[split] if (root / name).is_dir()), None)


def _files(folder: Path, end: str) -> dict[str, Path]:
    """Return the image files below a folder by path without extension and the `end` of the name."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in _EXTENSIONS and not path.name.startswith(".") and path.stem.endswith(end):
            key = path.relative_to(folder).with_suffix("").as_posix().removesuffix(end)
            if key in found:
                raise DataError(f"{path}: {found[key].name} has the same name; keep one of them")
            found[key] = path
    return found


def _matched(one: Path, other: Path | None, root: Path, images: str, masks: str) -> Pairs:
    if other is None:
        raise DataError(f"{one}: no folder of masks for it below {masks}; add it")
    found, labels = _files(one, _ENDS.get(images, "")), _files(other, _ENDS.get(masks, ""))
    if not found:
        raise DataError(f"{one}: contains no images; add some, or correct task.data.images")
    for path in labels.values():
        if path.suffix.lower() in _LOSSY:
            raise DataError(f"{path}: a JPEG cannot hold labels, because it changes values; save masks as PNG")
    for name, others, what, folder in ((found, labels, "mask", other), (labels, found, "image", one)):
        missing = sorted(name.keys() - others.keys())
        if missing:
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise DataError(
                f"{name[missing[0]]}{more}: has no {what} {missing[0]}.* in {folder}; add it, or remove the file"
            )
    return [(found[key].relative_to(root).as_posix(), found[key], labels[key]) for key in sorted(found)]


# -- classes -----------------------------------------------------------------------------------------------------------


def _labels(root: Path, config: MaskDataConfig, masks: Sequence[Path]) -> Labels:
    """Return the classes of a class file, of Cityscapes, or of the masks."""
    file = root / "classes.txt" if config.classes_file is None else Path(config.classes_file).expanduser()
    with _opened(masks[0]) as image:
        mode, palette = image.mode, image.getpalette() if image.mode == "P" else None
    listed: list[tuple[int, str, Color | None]]
    if config.classes_file is not None or file.exists():
        listed = _read_classes(file)
    elif (root / _ADE20K).exists():
        listed = _ade20k(root / _ADE20K)
    elif masks[0].stem.endswith("_labelIds"):
        listed = [(label, *each) for label, each in CITYSCAPES.items()]
    elif mode not in ("P", "L", "1", "I", "I;16"):
        raise DataError(
            f"{masks[0]}: a mask in mode {mode}; list its classes in a file whose lines are `name r g b` (--set "
            "task.data.classes_file=FILE), or save masks with one value per pixel"
        )
    else:
        listed = [(label, f"class {label}", None) for label in _values(masks)]
    shift = 1 if config.reduce_zero_label or (root / _ADE20K).is_file() else 0
    ignored = _ignored(config, listed, file)
    kept = [each for each in listed if each[0] not in ignored and each[0] >= shift and each[0] != IGNORED]
    if len(kept) == 1 and [each[0] for each in listed] == [0]:
        raise DataError(
            f"{root}: masks contain no label except 0 and 255, which is ignored; save the labels of the other class as 1"
        )
    if not 2 <= len(kept) < IGNORED:
        raise DataError(f"{root}: {len(kept)} classes; segmentation requires 2 to 254, apart from ignored labels")
    table = np.full(256, -1, dtype=np.int16)
    table[[IGNORED, *(label for label in ignored if label < 256), *([0] if shift else [])]] = IGNORED
    if masks[0].stem.endswith("_labelIds"):
        table[table < 0] = IGNORED
    for number, (label, _, _) in enumerate(kept):
        table[label] = number
    given = mode not in ("P", "L", "1", "I", "I;16")
    colors = tuple(color or _color(label, palette) for label, _, color in kept)
    rgb = None
    if given:
        if lacking := [name for _, name, color in kept if color is None]:
            raise DataError(
                f"{file}: no color for the class {lacking[0]!r}, and masks are in mode {mode}; use `name r g b`"
            )
        numbers = {label: number for number, (label, _, _) in enumerate(kept)}
        rgb = {
            color[0] << 16 | color[1] << 8 | color[2]: numbers.get(label, IGNORED)
            for label, _, color in listed
            if color is not None
        }
    return Labels(classes=tuple(name for _, name, _ in kept), colors=colors, table=table, rgb=rgb)


def _coco_labels(
    root: Path, config: MaskDataConfig, coco: Mapping[str, CocoSplit], listed: Sequence[tuple[int, str, Color | None]]
) -> Labels:
    if config.classes_file is not None or config.reduce_zero_label:
        name = "reduce_zero_label" if config.classes_file is None else "classes_file"
        raise DataError(f"task.data.{name}: {root} has COCO annotations, which list their classes; remove it")
    ignored = _ignored(config, listed, next(iter(coco.values())).file)
    kept = [each for each in listed if each[0] not in ignored]
    if len(kept) < 2:
        raise DataError(f"{root}: {len(kept)} classes; segmentation requires 2 to 254, apart from ignored labels")
    table = np.full(256, IGNORED, dtype=np.int16)
    table[[label for label, _, _ in kept]] = np.arange(len(kept))
    return Labels(
        classes=tuple(name for _, name, _ in kept),
        colors=tuple(color or _color(label, None) for label, _, color in kept),
        table=table,
        coco={mask: found for found in coco.values() for mask in found.annotated},
    )


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    try:
        with open_regular(path) as file, open_image(file) as image:
            yield image
    except DAMAGE as error:
        raise DataError(f"{path}: cannot be read as a mask ({error}); replace the file") from None


def _values(masks: Sequence[Path]) -> list[int]:
    """Return 0 to the largest label of at most 200 masks, without 255."""
    step = max(1, len(masks) // 200)

    def largest(path: Path) -> int:
        with _opened(path) as image:
            values = np.asarray(image)
        return int(values[values < IGNORED].max(initial=0))

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        return list(range(max(threads.map(largest, masks[::step])) + 1))


def _ignored(config: MaskDataConfig, listed: Sequence[tuple[int, str, Color | None]], file: Path) -> set[int]:
    labels = {name: label for label, name, _ in listed}
    found = {label for label, name, _ in listed if name.lower().strip("_ ") in UNLABELED}
    for given in config.ignore:
        if isinstance(given, str) and given not in labels:
            near = did_you_mean(given, labels)
            raise DataError(f"task.data.ignore: no class {given!r} in {file}{near}")
        found.add(labels[given] if isinstance(given, str) else given)
    return found


def _read_classes(file: Path) -> list[tuple[int, str, Color | None]]:
    """Return label, name and color of each line.

    Raises:
        DataError: the file cannot be read, or a line has another form; the message names the line.
    """
    try:
        lines = read_text(file).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({error}); correct task.data.classes_file") from None
    found: list[tuple[int, str, Color | None]] = []
    for number, line in enumerate(lines, start=1):
        words = line.replace(",", " ").split()
        if not words:
            continue
        label, color = len(found), None
        if len(words) > 3 and all(word.isdigit() for word in words[-3:]):
            color = (int(words[-3]), int(words[-2]), int(words[-1]))
            words = words[:-3]
        if len(words) > 1 and words[0].isdigit():
            label, words = int(words[0]), words[1:]
        name = " ".join(words)
        if not name or label > 255 or (color and max(color) > 255):
            raise DataError(f"{file}, line {number}: {line!r} is not `name`, `label name` or `name r g b`; correct it")
        if label in {other for other, _, _ in found} or name in {other for _, other, _ in found}:
            raise DataError(f"{file}, line {number}: {line!r} repeats a label or a name; correct it")
        found.append((label, name, color))
    if not found:
        raise DataError(f"{file}: empty; add a line per class")
    return found


def _ade20k(file: Path) -> list[tuple[int, str, Color | None]]:
    """Return label and first name of each class in the table of ADE20K, after label 0 for all others."""
    try:
        rows = [line.split("\t") for line in read_text(file).splitlines()[1:] if line.strip()]
        return [(0, "other", None), *((int(row[0]), row[-1].split(",")[0].strip(), None) for row in rows)]
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: is not the table of ADE20K ({error}); replace it, or remove it") from None


def _color(label: int, palette: list[int] | None) -> Color:
    """Return the color of a label in the palette, or in the usual one of PASCAL VOC."""
    if palette is not None and len(palette) >= 3 * label + 3:
        return palette[3 * label], palette[3 * label + 1], palette[3 * label + 2]
    bits = [[label >> (3 * place + channel) & 1 for place in range(8)] for channel in range(3)]
    red, green, blue = (sum(bit << 7 - place for place, bit in enumerate(each)) for each in bits)
    return red, green, blue
