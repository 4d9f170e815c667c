"""Classes of masks: of a class file, of Cityscapes, ADE20K and COCO annotations, or of the masks themselves."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from attngraft.counting import counted
from attngraft.errors import DataError
from attngraft.files import user_path
from attngraft.opening import read_text
from attngraft.suggest import did_you_mean, quoted, text_lines
from attngraft.tasks.images.boundaries import IGNORED
from attngraft.tasks.images.folders import CITYSCAPES_END
from attngraft.tasks.images.stored import Stored, read_mask
from attngraft.tasks.segmentation.coco import CocoSplit
from attngraft.tasks.segmentation.config import MaskDataConfig
from attngraft.tasks.segmentation.masks import VALUES, Color, Labels

UNLABELED = {"void", "unlabeled", "unlabelled", "ignore", "ignored", "unknown"}  #: names of labels that are no classes
_NUMBER = re.compile(r"[0-9]{1,6}")
_INTEGER = re.compile(r"-?[0-9]+")
_ADE20K = "objectInfo150.txt"  #: names of the classes of ADE20K

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


def mask_classes(root: Path, config: MaskDataConfig, masks: Sequence[Stored]) -> Labels:
    """Return the classes of a class file, of Cityscapes, or of the masks.

    Raises:
        DataError: there are fewer than 2 classes or more than 254, or they do not fit the masks.
    """
    file = root / "classes.txt" if config.classes_file is None else user_path(config.classes_file)
    first = read_mask(masks[0])
    mode, palette = first.mode, first.getpalette() if first.mode == "P" else None
    cityscapes = isinstance(masks[0], Path) and masks[0].stem.endswith(CITYSCAPES_END)
    listed: list[tuple[int, str, Color | None]]
    if config.classes_file is not None or file.exists():
        listed = _read_classes(file)
    elif (root / _ADE20K).exists():
        listed = _ade20k(root / _ADE20K)
    elif cityscapes:
        listed = [(label, *each) for label, each in CITYSCAPES.items()]
    elif mode not in VALUES:
        raise DataError(
            f"{masks[0]}: a mask in mode {mode}; list its classes in a file whose lines are `name r g b` (--set "
            "task.data.classes_file=FILE), or save masks with one value per pixel"
        )
    else:
        listed = [(label, f"class {label}", None) for label in _values(masks)]
    shift = 1 if config.reduce_zero_label or (root / _ADE20K).exists() else 0
    ignored = _ignored(config, listed, file)
    if lost := [name for label, name, _ in listed if label == IGNORED and label not in ignored]:
        raise DataError(
            f"{file}: {quoted(lost[0])} has the label {IGNORED}, which is ignored; give the class another label, or call it "
            f"void (or use --set task.data.ignore=[{IGNORED}])"
        )
    kept = [each for each in listed if each[0] not in ignored and each[0] >= shift and each[0] != IGNORED]
    if len(kept) == 1 and [each[0] for each in listed] == [0]:
        raise DataError(
            f"{root}: masks contain no label from 1 to 254 (255 is ignored); save those of the other classes as 1, 2, ..."
        )
    if not 2 <= len(kept) < IGNORED:
        raise DataError(f"{root}: {len(kept)} classes; segmentation requires 2 to 254, apart from ignored labels")
    table = np.full(256, -1, dtype=np.int16)
    table[[IGNORED, *(label for label in ignored if label < 256), *([0] if shift else [])]] = IGNORED
    if cityscapes:
        table[table < 0] = IGNORED
    for number, (label, _, _) in enumerate(kept):
        table[label] = number
    given = mode not in VALUES
    colors = tuple(color or _color(label, palette) for label, _, color in kept)
    rgb: dict[int, int] | None = None
    if given:
        if lacking := [name for _, name, color in kept if color is None]:
            raise DataError(
                f"{file}: no color for the class {lacking[0]!r}, and masks are in mode {mode}; use `name r g b`"
            )
        numbers = {label: number for number, (label, _, _) in enumerate(kept)}
        rgb = {}
        for label, name, color in listed:
            if color is not None:
                number, value = numbers.get(label, IGNORED), color[0] << 16 | color[1] << 8 | color[2]
                if rgb.setdefault(value, number) != number:
                    raise DataError(f"{file}: {quoted(name)} has the color of another class; give each class its own")
    return Labels(classes=tuple(name for _, name, _ in kept), colors=colors, table=table, rgb=rgb)


def coco_classes(
    root: Path, config: MaskDataConfig, coco: Mapping[str, CocoSplit], listed: Sequence[tuple[int, str, Color | None]]
) -> Labels:
    """Return the classes of COCO annotations."""
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


def _values(masks: Sequence[Stored]) -> list[int]:
    """Return the labels from 0 to the largest one (except 255) in a sample of at most 200 masks."""
    step = max(1, len(masks) // 200)

    def largest(mask: Stored) -> int:
        values = np.asarray(read_mask(mask))
        return int(values[values < IGNORED].max(initial=0))

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        chosen = masks[::step]
        found = counted(threads.map(largest, chosen), "masks read for their labels", total=len(chosen))
        return list(range(max(found) + 1))


def _ignored(config: MaskDataConfig, listed: Sequence[tuple[int, str, Color | None]], file: Path) -> set[int]:
    labels = {name: label for label, name, _ in listed}
    found = {label for label, name, _ in listed if name.lower().strip("_ ") in UNLABELED}
    for given in config.ignore:
        if isinstance(given, str) and given not in labels:
            near = did_you_mean(given, labels)
            raise DataError(f"task.data.ignore: no class {quoted(given)} in {file}{near}")
        found.add(labels[given] if isinstance(given, str) else given)
    return found


def _read_classes(file: Path) -> list[tuple[int, str, Color | None]]:
    """Return label, name and color of each line.

    Raises:
        DataError: the file cannot be read, or a line has another form; the message names the line.
    """
    try:
        lines = text_lines(read_text(file, limit=2**20))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({error}); correct task.data.classes_file") from None
    found: list[tuple[int, str, Color | None]] = []
    for number, line in enumerate(lines, start=1):
        words = line.replace(",", " ").split()
        if not words:
            continue
        label, color = len(found), None
        if len(words) > 3 and all(map(_NUMBER.fullmatch, words[-3:])):
            color = (int(words[-3]), int(words[-2]), int(words[-1]))
            words = words[:-3]
        if len(words) > 1 and _INTEGER.fullmatch(words[0]):
            label, words = int(words[0]) if len(words[0]) < 10 else -1, words[1:]
        name = " ".join(words)
        if not name or not 0 <= label <= 255 or (color and max(color) > 255):
            raise DataError(
                f"{file}, line {number}: {quoted(line)} is not `name`, `label name` or `name r g b`; correct it"
            )
        if label in {other for other, _, _ in found} or name in {other for _, other, _ in found}:
            raise DataError(f"{file}, line {number}: {quoted(line)} repeats a label or a name; correct it")
        found.append((label, name, color))
    if not found:
        raise DataError(f"{file}: empty; add a line per class")
    return found


def _ade20k(file: Path) -> list[tuple[int, str, Color | None]]:
    """Return label and first name of each class in the table of ADE20K, after label 0 for all others."""
    try:
        rows = [line.split("\t") for line in text_lines(read_text(file))[1:] if line.strip()]
        if len({len(row) for row in rows}) > 1 or not all(
            _INTEGER.fullmatch(row[0]) and row[-1].strip() for row in rows
        ):
            raise ValueError("rows must have equally many columns, a number in the first, and a name in the last")
        found = [(int(row[0]), row[-1].split(",")[0].strip(), None) for row in rows]
        labels = {label for label, _, _ in found}
        if len(labels) < len(found) or any(not 0 < label < IGNORED for label in labels):
            raise ValueError(f"labels must be different, from 1 to {IGNORED - 1}")
        return [(0, "other", None), *found]
    except (OSError, ValueError, IndexError) as error:
        raise DataError(f"{file}: is not the table of ADE20K ({error}); replace it, or remove it") from None


def _color(label: int, palette: list[int] | None) -> Color:
    """Return the color of a label in the palette, or in the usual one of PASCAL VOC."""
    if palette is not None and len(palette) >= 3 * label + 3:
        return palette[3 * label], palette[3 * label + 1], palette[3 * label + 2]
    bits = [[label >> (3 * place + channel) & 1 for place in range(8)] for channel in range(3)]
    red, green, blue = (sum(bit << 7 - place for place, bit in enumerate(each)) for each in bits)
    return red, green, blue
