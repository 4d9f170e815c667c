"""Pascal VOC: an XML file of boxes per image, and lists of the images of each split.

    JPEGImages/NAME.jpg, Annotations/NAME.xml, ImageSets/Main/{train,val,trainval,test}.txt

Without lists, all annotated images are for training. Difficult objects are ignored, as crowds are.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from attngraft.errors import DataError
from attngraft.opening import parse_numbers, read_text
from attngraft.suggest import cut, quoted, repeated, text_lines
from attngraft.tasks.detection.annotated import (
    AnnotatedImages,
    Checks,
    ObjectList,
    ReadAnnotation,
    ReadObjects,
)
from attngraft.tasks.detection.config import ObjectDataConfig
from attngraft.tasks.detection.per_image import Entry, read_files
from attngraft.tasks.images.folders import IMAGES, files_by_key, find_side, image_files

_FOLDERS = ("Annotations", "annotations")
_LISTS = "ImageSets/Main"
_PROBED = 20  #: number of files that are looked at
_SIDES = ("xmin", "ymin", "xmax", "ymax")


def is_voc(root: Path) -> bool:
    """Return whether a folder has annotations of objects in the form of Pascal VOC."""
    folder = find_side(root, None, _FOLDERS) if root.is_dir() else None
    if folder is None:
        return False
    for file in islice(files_by_key(folder, (".xml",)).values(), _PROBED):
        try:
            if "<object" in read_text(file).lower():
                return True
        except (OSError, UnicodeDecodeError):
            pass
    return False


def read_voc(root: Path, config: ObjectDataConfig) -> ReadObjects:
    """Read the annotations of all splits; classes are in alphabetical order.

    Raises:
        DataError: a folder, a list or an image is missing, or annotations cannot be used.
    """
    folder, images = find_side(root, None, _FOLDERS), find_side(root, config.images, ("JPEGImages", *IMAGES))
    if folder is None or images is None:
        raise DataError(f"{root}: no folders {config.images or 'JPEGImages'} and Annotations; add them")
    checks, numbers = Checks(), dict[str, int]()

    def parse(text: str, objects: ObjectList, file: Path) -> None:
        for place, (where, name, box, difficult) in enumerate(_objects(text, objects.size, file), start=1):
            try:
                label = numbers.setdefault(name, len(numbers))
                objects.add(box, label, where=where, crowd=difficult)
            except ValueError as error:
                checks.mistakes.append(f"{where}: {error}; correct or remove object {place}")

    parts = {split: read_files(each, parse, checks) for split, each in _entries(root, folder, images, checks).items()}
    parts, _, notes = checks.close(parts)
    classes = sorted(numbers)
    if not classes:
        raise DataError(f"{folder}: no objects; annotate some")
    table = np.zeros(len(numbers), dtype=np.int64)
    for label, name in enumerate(classes):
        table[numbers[name]] = label
    return ReadObjects(
        classes=tuple(classes),
        category_ids=tuple(range(1, len(classes) + 1)),
        parts={split: _renumbered(part, table) for split, part in parts.items()},
        masks=False,
        notes=notes,
    )


def _renumbered(part: AnnotatedImages, table: np.ndarray) -> AnnotatedImages:
    read = [each for each in part.annotations if isinstance(each, ReadAnnotation)]
    new = (ReadAnnotation(each.pixels, replace(each.found, labels=table[each.found.labels])) for each in read)
    return replace(part, annotations=tuple(new))


def _entries(root: Path, folder: Path, images: Path, checks: Checks) -> dict[str, list[Entry]]:
    found, files = image_files(images), files_by_key(folder, (".xml",))
    lists = {split: _names(root / _LISTS / f"{split}.txt") for split in ("train", "val", "trainval", "test")}
    if lists["train"] is None and lists["trainval"] is not None:
        held = set(lists["val"] or ())
        lists["train"] = [name for name in lists["trainval"] if name not in held]
    if lists["train"] is None:
        lists["train"] = sorted(files)
    result: dict[str, list[Entry]] = {}
    for split in ("train", "val", "test"):
        entries: list[Entry] = []
        for name in lists[split] or ():
            if name not in files:
                checks.mistakes.append(
                    f"{root / _LISTS / f'{split}.txt'}: no {cut(name)}.xml in {folder}; add it, or remove the line"
                )
            elif name not in found:
                checks.mistakes.append(f"{files[name]}: has no image {name}.* in {images}; add it, or remove the file")
            else:
                entries.append((found[name].relative_to(root).as_posix(), found[name], files[name]))
        if lists[split] is not None:
            result[split] = entries
    return result


def _names(file: Path) -> list[str] | None:
    if not file.exists():
        return None
    try:
        names = [line.split()[0] for line in text_lines(read_text(file)) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read as text ({error}); save it again in UTF-8") from None
    if (twice := repeated(names)) is not None:
        raise DataError(f"{file}: lists {quoted(twice)} twice; remove one of the lines")
    return names


def _objects(text: str, size: tuple[int, int], file: Path) -> list[tuple[str, str, list[float], bool]]:
    """Return location, class, box and difficulty of each object.

    Raises:
        ValueError: the text has another form.
    """
    if "<!DOCTYPE" in text:
        raise ValueError("declares a document type, which may contain entities")
    try:
        tree = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise ValueError(f"is not XML ({error})") from None
    for each in tree.iter():  # some tools write name spaces, or capitals
        each.tag = str(each.tag).rpartition("}")[2].lower()
    if tree.tag != "annotation":
        raise ValueError(f"starts with <{cut(tree.tag)}>, not <annotation>")
    objects = tree.findall("object")
    if len(objects) < sum(each.tag == "object" for each in tree.iter()):
        raise ValueError("has an <object> inside of another element")
    if repeated(each.tag for each in tree if each.tag == "size"):
        raise ValueError("has two sizes")
    given = [tree.findtext(f"size/{side}", "0").strip().removesuffix(".0") for side in ("width", "height")]
    if given not in (["0", "0"], ["", ""], [str(side) for side in size]):
        raise ValueError(f"is of {cut(' x '.join(given))} pixels, but its image has {size[0]} x {size[1]}")
    found = []
    for place, each in enumerate(objects, start=1):
        if twice := repeated(part.tag for part in each if part.tag in ("name", "bndbox", "difficult")):
            raise ValueError(f"object {place} has two elements {twice}")
        name, box = (each.findtext("name") or "").strip(), each.find("bndbox")
        if not name or box is None:
            raise ValueError(f"object {place} has no {'bndbox' if name else 'name'}")
        words = [box.findtext(side, "") for side in _SIDES]
        if repeated(part.tag for part in box):
            raise ValueError(f"object {place} has a side of its box twice")
        try:
            sides = parse_numbers(words)
        except ValueError:
            sides = [math.nan]
        if not all(abs(side) < 1e9 for side in sides):
            raise ValueError(f"object {place} has the box {quoted(words)}, not numbers (xmin, ymin, xmax, ymax)")
        left, top, right, bottom = sides  # the first and the last pixel, counted from 1
        difficult = each.findtext("difficult", "0").strip().lower()
        if difficult not in ("", "0", "1", "true", "false"):
            raise ValueError(f"object {place} has difficult {quoted(difficult)}, not 0 or 1")
        sides = [left - 1, top - 1, right, bottom]
        found.append((f"{file}: object {place}", name, sides, difficult in ("1", "true")))
    return found
