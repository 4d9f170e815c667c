"""COCO's annotations as several labels per image: an image has the categories of its objects, crowds included.

A .json of `images`, `annotations` and `categories` by itself, or a folder of them, one for each part:
`annotations/instances_train2017.json` with the images in `train2017/` or `images/train2017/`, or
`train/_annotations.coco.json` with the images beside it. Boxes and masks are not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.folder import FolderImages
from attngraft.tasks.images.sources.parts import TRAIN_NAMES, VAL_NAMES, Parts, find_name, missing_validation

_OBJECTS = "instances_"  #: begins the names of files of objects; captions and keypoints lie beside them
_BESIDE = "_annotations.coco.json"  #: among the images of a part
_PROBED = 20  #: images that are looked for to find where they lie


@dataclass(frozen=True, kw_only=True)
class _File:
    """One file of annotations: the images in its order, and the category names of each one's objects."""

    path: Path
    names: list[str]
    labels: list[set[str]]
    categories: list[str]


def coco_in(folder: Path) -> bool:
    """Whether annotations lie in `folder` as `open_coco` finds them."""
    return bool(_parts_in(folder))


def open_coco(path: Path, config: DataConfig) -> Parts:
    """The images of a .json, all of them one part, or of a folder with one for each part.

    Raises:
        DataError: no COCO annotations, a missing part, an annotation of an image or category that is not there, or
            images that are not found.
    """
    if path.is_file():
        found = _read(path)
        base = _base(path.parent.parent if path.parent.name == "annotations" else path.parent, config)
        return _joined(path, base, found, None, config, origin=f"the images of {path.name}")
    there = _parts_in(path)
    short = {re.sub(r"\d+$", "", name): name for name in reversed(there)}  # train for train2017
    known = [*there, *(name for name in short if name not in there)]
    train = find_name(known, config.train_split, TRAIN_NAMES, field="train_split", where=str(path))
    if train is None:
        raise DataError(
            f"{path}: which annotations are for training? name them with task.data.train_split; there is: {', '.join(there)}"
        )
    named = config.val_split or (config.val_fraction is None and config.split_file is None)
    val = find_name(known, config.val_split, VAL_NAMES, field="val_split", where=str(path)) if named else None
    if named and val is None:
        raise missing_validation(str(path), short.get(train, train), list(there))
    files = [there[short.get(name, name)] for name in (train, val) if name is not None]
    origin = " and ".join(file.relative_to(path).as_posix() for file in files)
    read = [_read(file) for file in files]
    return _joined(path, _base(path, config), read[0], read[1] if val else None, config, origin=origin)


def _parts_in(folder: Path) -> dict[str, Path]:
    """Part name to its file of annotations."""
    found = {
        file.stem.removeprefix(_OBJECTS): file
        for place in (folder, folder / "annotations")
        for file in sorted(place.glob(f"{_OBJECTS}*.json"))
    }
    return found or {file.parent.name: file for file in sorted(folder.glob(f"*/{_BESIDE}"))}


def _read(path: Path) -> _File:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON: {error}") from None
    images, annotations, categories = (_entries(path, content, key) for key in ("images", "annotations", "categories"))
    by_id = _by_id(path, categories, "categories", "name")
    rows = _by_id(path, images, "images", "file_name")
    labels: dict[Any, set[str]] = {key: set() for key in rows}
    for place, annotation in enumerate(annotations):
        image, category = annotation.get("image_id"), annotation.get("category_id")
        if image not in labels or category not in by_id:
            missing = f"image {image!r}" if image not in labels else f"category {category!r}"
            raise DataError(f"{path}: annotations[{place}] is of {missing}, which the file does not list")
        labels[image].add(by_id[category])
    if not rows:
        raise DataError(f"{path}: lists no images")
    return _File(
        path=path,
        names=list(rows.values()),
        labels=list(labels.values()),
        categories=list(dict.fromkeys(by_id.values())),
    )


def _entries(path: Path, content: Any, key: str) -> list[Mapping[str, Any]]:
    found = content.get(key) if isinstance(content, Mapping) else None
    if not isinstance(found, list) or not all(isinstance(entry, Mapping) for entry in found):
        raise DataError(
            f"{path}: has no list {key!r}, so these are no COCO annotations of objects; for labels in another form give a "
            "table (.csv) of paths and labels"
        )
    return found


def _by_id(path: Path, entries: Sequence[Mapping[str, Any]], key: str, value: str) -> dict[Any, str]:
    found: dict[Any, str] = {}
    for place, entry in enumerate(entries):
        if not isinstance(entry.get("id"), int | str) or not isinstance(entry.get(value), str):
            raise DataError(f"{path}: {key}[{place}] needs an id and a text {value!r}")
        if entry["id"] in found:
            raise DataError(f"{path}: {key}[{place}] has the id {entry['id']!r}, as one before it")
        found[entry["id"]] = entry[value]
    return found


def _base(folder: Path, config: DataConfig) -> Path:
    if config.root is None:
        return folder
    root = Path(config.root).expanduser()
    if not root.is_dir():
        raise DataError(f"task.data.root: there is no folder {root}")
    return root


def _joined(where: Path, base: Path, train: _File, val: _File | None, config: DataConfig, *, origin: str) -> Parts:
    files = [train] if val is None else [train, val]
    named = dict.fromkeys(name for file in files for name in file.categories)
    seen = {label for file in files for labels in file.labels for label in labels}
    classes = tuple(name for name in named if name in seen)
    notes = []
    if len(named) > len(classes):
        notes.append(f"{len(named) - len(classes)} of {len(named)} categories have no object and are left out.")
    number = {name: place for place, name in enumerate(classes)}

    def images(file: _File) -> FolderImages:
        labels = np.zeros((len(file.names), len(classes)), dtype=np.uint8)
        for row, own in enumerate(file.labels):
            labels[row, [number[name] for name in own]] = 1
        inside = _inside(base, file)
        return FolderImages(base, names=[inside + name for name in file.names], labels=labels)

    return Parts(
        kind="coco",
        where=str(where),
        classes=classes,
        train=images(train),
        val=None if val is None else images(val),
        origin=origin,
        multilabel=True,
        notes=tuple(notes),
    )


def _inside(base: Path, file: _File) -> str:
    """What stands before a file name for a path below `base`: empty, or a folder with its slash."""
    part = file.path.stem.removeprefix(_OBJECTS)
    places = [f"{part}/", f"images/{part}/", "images/", ""]
    if file.path.is_relative_to(base):
        beside = file.path.parent.relative_to(base).as_posix()
        places.append("" if beside == "." else f"{beside}/")
    probed = file.names[:_PROBED]
    for place in places:
        if any((base / f"{place}{name}").is_file() for name in probed):
            return place
    listed = ", ".join(f"{base}/{place}" for place in dict.fromkeys(places))
    raise DataError(
        f"{file.path}: none of its first {len(probed)} images ({probed[0]}, ...) was found (looked in {listed}); say with "
        "task.data.root where they lie"
    )
