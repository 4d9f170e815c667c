"""COCO annotations as multi-label data: the labels are the categories of objects, including crowds.

The source is a .json file with `images`, `annotations` and `categories`, or a folder with one such file per split:
`annotations/instances_train2017.json` with the images in `train2017/` or `images/train2017/`, or
`train/_annotations.coco.json` with the images in the same folder. Boxes and masks are ignored.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attngraft.errors import DataError
from attngraft.opening import JSON_LIMIT, read_json
from attngraft.suggest import cut, quoted
from attngraft.tasks.images.coco import coco_files, path_below
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.base import (
    TRAIN_NAMES,
    ImageSource,
    configured_root,
    find_split,
    find_test,
    missing_validation,
    no_labels,
    usual_val_names,
)
from attngraft.tasks.images.sources.folder import FolderImages

_OBJECTS = "instances_"  #: prefix of the files with object annotations, unlike captions and keypoints
_PROBED = 20  #: number of images to look for when searching for their folder


@dataclass(frozen=True, kw_only=True)
class _Annotations:
    """Image names in the order of an annotation file, and the categories of each image's objects."""

    path: Path
    names: list[str]
    labels: list[set[str]]
    categories: list[str]


def coco_in(folder: Path) -> bool:
    """Return whether `folder` contains annotations that `open_coco` can read."""
    return bool(coco_files(folder, (_OBJECTS,)))


def open_coco(path: Path, config: DataConfig) -> ImageSource:
    """Open the images of a .json file as one split, or a folder with a .json file per split.

    Raises:
        DataError: there are no COCO annotations, a split or images are missing, or an annotation refers to an image or
            category that is not listed.
    """
    root = configured_root(config)
    if not path.is_dir():
        folder = path.parent.parent if path.parent.name == "annotations" else path.parent
        return _build(path, root or folder, _read(path), None, origin=f"the images of {path.name}")
    available = coco_files(path, (_OBJECTS,))
    short = {re.sub(r"\d+$", "", name): name for name in reversed(available)}  # train for train2017
    known = [*available, *(name for name in short if name not in available)]
    train = find_split(known, config.train_split, TRAIN_NAMES, field="train_split", where=str(path))
    if train is None:
        raise DataError(
            f"{path}: no training annotations; name them with --set task.data.train_split=NAME; available: "
            f"{', '.join(available)}"
        )
    named = config.val_split or not config.splits_train
    usual = usual_val_names(config)
    val = find_split(known, config.val_split, usual, field="val_split", where=str(path)) if named else None
    if named and val is None and config.folds is None:
        raise missing_validation(str(path), short.get(train, train), list(available))
    files = [available[short.get(name, name)] for name in (train, val) if name is not None]
    origin = " and ".join(file.relative_to(path).as_posix() for file in files)
    read = [_read(file) for file in files]
    source = _build(path, root or path, read[0], read[1] if val else None, origin=origin)
    used = [name for split in (train, val) if split is not None for name in (split, short.get(split, split))]
    used += [name for name in short if short[name] in used]
    return replace(source, test_split=find_test(known, config, used=used, where=str(path)))


def _read(path: Path) -> _Annotations:
    try:
        content = read_json(path, limit=JSON_LIMIT)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error}); save or download it again") from None
    images, annotations, categories = (_entries(path, content, key) for key in ("images", "annotations", "categories"))
    by_id = _by_id(path, categories, "categories", "name")
    rows = _by_id(path, images, "images", "file_name")
    labels: dict[Any, set[str]] = {key: set() for key in rows}
    for number, annotation in enumerate(annotations):
        image, category = annotation.get("image_id"), annotation.get("category_id")
        known = isinstance(image, int | str) and image in labels  # a list cannot be looked up
        if not known or not isinstance(category, int | str) or category not in by_id:
            missing = f"category {quoted(category)}" if known else f"image {quoted(image)}"
            raise DataError(
                f"{path}: annotations[{number}] refers to {missing}, which the file does not list; add it, "
                "or remove the annotation"
            )
        labels[image].add(by_id[category])
    if not rows:
        raise DataError(f"{path}: the list 'images' is empty; add images")
    return _Annotations(
        path=path,
        names=list(rows.values()),
        labels=list(labels.values()),
        categories=list(dict.fromkeys(by_id.values())),
    )


def _entries(path: Path, content: Any, key: str) -> list[Mapping[str, Any]]:
    found = content.get(key) if isinstance(content, Mapping) else None
    if not isinstance(found, list) or not all(isinstance(entry, Mapping) for entry in found):
        raise DataError(
            f"{path}: not COCO object annotations, because the list {key!r} is missing; for other labels, use a table "
            "(.csv) of paths and labels"
        )
    return found


def _by_id(path: Path, entries: Sequence[Mapping[str, Any]], key: str, value: str) -> dict[Any, str]:
    found: dict[Any, str] = {}
    for number, entry in enumerate(entries):
        if not isinstance(entry.get("id"), int | str) or not isinstance(entry.get(value), str):
            raise DataError(f"{path}: {key}[{number}] must have an id and a string {value!r}")
        if entry["id"] in found:
            raise DataError(f"{path}: {key}[{number}] repeats the id {entry['id']!r}")
        found[entry["id"]] = entry[value]
    return found


def _build(where: Path, base: Path, train: _Annotations, val: _Annotations | None, *, origin: str) -> ImageSource:
    files = [train] if val is None else [train, val]
    named = dict.fromkeys(name for file in files for name in file.categories)
    seen = {label for file in files for labels in file.labels for label in labels}
    classes = tuple(name for name in named if name in seen)
    notes = []
    if len(named) > len(classes):
        notes.append(f"{len(named) - len(classes)} of {len(named)} categories have no objects and are dropped.")
    number = {name: label for label, name in enumerate(classes)}

    def images(file: _Annotations) -> FolderImages:
        labels = no_labels(len(file.names), len(classes), where=str(file.path))
        for row, names in enumerate(file.labels):
            labels[row, [number[name] for name in names]] = 1
        for name in file.names:
            try:
                path_below(base, base, name)
            except ValueError as error:
                raise DataError(
                    f"{file.path}: an image: {error}; correct it, or give the folder as task.data.root"
                ) from None
        inside = _prefix(base, file)
        return FolderImages(base, names=[inside + name for name in file.names], labels=labels)

    return ImageSource(
        kind="coco",
        where=str(where),
        classes=classes,
        train=images(train),
        val=None if val is None else images(val),
        origin=origin,
        multilabel=True,
        notes=tuple(notes),
    )


def _prefix(base: Path, file: _Annotations) -> str:
    """Return the images' folder relative to `base`, with a trailing slash, or an empty string."""
    split = file.path.stem.removeprefix(_OBJECTS)
    folders = [f"{split}/", f"images/{split}/", "images/", ""]
    if file.path.is_relative_to(base):
        beside = file.path.parent.relative_to(base).as_posix()
        folders.append("" if beside == "." else f"{beside}/")
    probed = file.names[:_PROBED]
    for folder in folders:
        if any(os.path.isfile(base / f"{folder}{name}") for name in probed):
            return folder
    listed = ", ".join(f"{base}/{folder}" for folder in dict.fromkeys(folders))
    raise DataError(
        f"{file.path}: none of the first {len(probed)} images ({cut(probed[0])}, ...) exists in {listed}; give "
        "the folder of the images with --set task.data.root=FOLDER"
    )
