"""YOLO labels: a text file per image, with a line per object, and the names of the classes in data.yaml.

    data.yaml;  images/SPLIT/NAME.jpg, labels/SPLIT/NAME.txt;  SPLIT/images/NAME.jpg, SPLIT/labels/NAME.txt

A line is `class x y width height`, with the center of the box, or `class x y x y x y ...`, a polygon, in parts of the
image's width and height.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import ConfigError, DataError
from attngraft.opening import parse_numbers
from attngraft.suggest import cut, quoted, text_lines
from attngraft.tasks.detection.annotated import Checks, ObjectList, ReadObjects
from attngraft.tasks.detection.config import ObjectDataConfig
from attngraft.tasks.detection.per_image import Entry, read_files
from attngraft.tasks.detection.run_lengths import of_polygons
from attngraft.tasks.images.folders import IMAGES, SPLITS, files_by_key, find_side, image_files, split_folder
from attngraft.yaml_config import read_yaml

_FILES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
_LABELS = ("labels", "label")
_NUMBER = re.compile(r"[0-9]{1,6}")
_LARGEST = 2.0  #: coordinates above are no parts of a side


def is_yolo(path: Path) -> bool:
    """Return whether a folder, or its data.yaml, describes images with YOLO labels."""
    try:
        if path.is_file() and path.suffix.lower() not in (".yaml", ".yml"):
            return False
        root, file = _places(path)
        return file is not None and "names" in read_yaml(file) and bool(_folders(root, file, None, []))
    except DataError:
        return True
    except (ConfigError, OSError):
        return False


def has_labels(root: Path) -> bool:
    """Return whether a folder has YOLO labels or their data.yaml, one of which may be missing or unreadable."""
    root, file = _places(root)
    labels = find_side(root, None, _LABELS)
    return file is not None or (labels is not None and next(labels.rglob("*.txt"), None) is not None)


def read_yolo(path: Path, config: ObjectDataConfig) -> ReadObjects:
    """Read the labels of all splits.

    Raises:
        DataError: data.yaml or a folder is missing, or labels cannot be used.
    """
    root, file = _places(path)
    if file is None:
        raise DataError(
            f"{root}: no data.yaml; add one with a line `names: [cat, dog]`, in the order of the class numbers"
        )
    try:
        content = read_yaml(file)
    except ConfigError as error:
        raise DataError(str(error)) from None
    if content.get("kpt_shape") is not None:
        raise DataError(f"{file}: kpt_shape: keypoints are not read; remove them from the labels, and this line")
    names = _names(content, file)
    numbers = {key: label for label, key in enumerate(names)}
    unused = list[str]()
    folders = _folders(root, file, config.images, unused)
    if not folders:
        raise DataError(f"{root}: no folders images/train and labels/train, or train/images and train/labels; add them")

    def parse(text: str, objects: ObjectList, file: Path) -> None:
        for place, line in enumerate(text_lines(text), start=1):
            if line.strip():
                where = f"{file}, line {place}"
                try:
                    _add(line, objects, numbers, where)
                except ValueError as error:
                    checks.mistakes.append(f"{where}: {error}; correct it")

    checks, parts = Checks(), {}
    for split, (images, labels) in folders.items():
        parts[split] = read_files(_entries(images, labels, root, checks), parse, checks)
    parts, masks, notes = checks.close(parts)
    return ReadObjects(
        classes=tuple(names.values()), category_ids=tuple(names), parts=parts, masks=masks, notes=(*notes, *unused)
    )


def _places(path: Path) -> tuple[Path, Path | None]:
    """Return the folder and its data.yaml, which `path` may be."""
    if path.is_file():
        return path.parent, path
    return path, next((path / name for name in _FILES if (path / name).is_file()), None)


def _names(content: Mapping[str, Any], file: Path) -> dict[int, str]:
    listed = content.get("names")
    named = dict(enumerate(listed)) if isinstance(listed, list) else listed
    if not isinstance(named, dict) or not named:
        raise DataError(f"{file}: names is {quoted(listed)}; list the names of the classes: `names: [cat, dog]`")
    for key, name in named.items():
        if type(key) is not int or not 0 <= key < 2**63 or isinstance(name, list | dict | None):
            raise DataError(f"{file}: names: {quoted(key)}: {quoted(name)} is not the number and the name of a class")
    if content.get("nc", len(named)) != len(named):
        raise DataError(f"{file}: nc is {quoted(content['nc'])}, but names has {len(named)} classes; correct it")
    return {key: str(name) for key, name in sorted(named.items())}


def _folders(root: Path, file: Path, name: str | None, notes: list[str]) -> dict[str, tuple[Path, Path]]:
    """Return the folders of images and labels of each split: those in data.yaml if they exist, or usual ones.

    Args:
        root: the folder.
        file: its data.yaml.
        name: of the folder of images, or None.
        notes: where folders that do not exist are noted.
    """
    content, found = read_yaml(file), dict[str, tuple[Path, Path]]()
    images, labels = find_side(root, name, IMAGES), find_side(root, None, _LABELS)
    path = str(content.get("path", "")).lstrip("./").rstrip("/")
    if path and not f"{root}/".endswith(f"/{path}/"):
        notes.append(f"{file}: path is {quoted(content['path'])}; used instead: the folder of this file, {root}.")
    for split, usual in SPLITS.items():
        one = other = None
        entry = next((content[each] for each in usual if content.get(each) is not None), None)
        if entry is not None and (not isinstance(entry, str) or entry.endswith(".txt")):
            raise DataError(f"{file}: {split} is {quoted(entry)}; give one folder of images, such as images/{split}")
        given = None if entry is None else Path(os.path.normpath(root / entry.replace("\0", "")))
        if given is not None and given.is_relative_to(root) and given.is_dir():
            one, other = given, _labels_of(given, root)
        elif images is not None and labels is not None:
            one, other = split_folder(images, split), split_folder(labels, split)
        elif (folder := split_folder(root, split)) is not None:
            one, other = find_side(folder, name, IMAGES), find_side(folder, None, _LABELS)
        if one is not None and other is None and split != "test":
            raise DataError(f"{file}: no folder of labels for {one}; add {root / 'labels'}/..., or correct {split}")
        if one is not None and other is not None:
            found[split] = one, other
        if entry and not f"{one}/".endswith(f"/{entry.lstrip('./').rstrip('/')}/"):
            used = one or "no such split"
            notes.append(f"{file}: {split} is {quoted(entry)}, which is no folder in {root}; used instead: {used}.")
    if not found and images is not None and labels is not None:
        found["train"] = images, labels
    return found


def _labels_of(images: Path, root: Path) -> Path | None:
    parts = list(images.relative_to(root).parts)
    places = [place for place, part in enumerate(parts) if part in IMAGES]
    if not places:
        return None
    folders = (root.joinpath(*parts[: places[-1]], name, *parts[places[-1] + 1 :]) for name in _LABELS)
    return next((folder for folder in folders if folder.is_dir()), None)


def _entries(images: Path, labels: Path, root: Path, checks: Checks) -> list[Entry]:
    found = image_files(images)
    files = files_by_key(labels, (".txt",))
    if not found:
        raise DataError(f"{images}: contains no images; add some")
    for key in sorted(files.keys() - found.keys() - {"classes"}):  # labelImg writes classes.txt
        checks.mistakes.append(f"{files[key]}: has no image {key}.* in {images}; add it, or remove the file")
    return [(path.relative_to(root).as_posix(), path, files.get(key)) for key, path in found.items()]


def _add(line: str, objects: ObjectList, numbers: Mapping[int, int], where: str) -> None:
    words = line.split()
    if len(words) != 5 and (len(words) < 7 or len(words) % 2 == 0):
        raise ValueError(f"{quoted(line)} is not `class x y width height`, nor `class x y x y x y ...`")
    if not _NUMBER.fullmatch(words[0]) or int(words[0]) not in numbers:
        raise ValueError(f"the class {quoted(words[0])} is not a number in the names of data.yaml")
    try:
        values = parse_numbers(words[1:])
    except ValueError:
        raise ValueError(f"{quoted(cut(line))} contains a word that is no number") from None
    if not all(math.isfinite(value) and abs(value) <= _LARGEST for value in values):
        raise ValueError(f"{quoted(line)} contains numbers that are no parts of the image's width and height, 0 to 1")
    label = numbers[int(words[0])]
    width, height = objects.size
    if len(values) == 4:
        x, y, w, h = (value * side for value, side in zip(values, (width, height) * 2, strict=True))
        objects.add([x - w / 2, y - h / 2, x + w / 2, y + h / 2], label, where=where)
        return
    points = np.array(values).reshape(-1, 2) * (width, height)
    box = [*points.min(axis=0).tolist(), *points.max(axis=0).tolist()]
    objects.add(box, label, where=where, mask=of_polygons([points.reshape(-1).tolist()], (width, height)))
