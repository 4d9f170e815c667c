"""Images with boxes or instance masks, split into training, validation and test.

Sources are COCO annotations (`coco`), instance masks (`instances`), YOLO labels (`yolo`) and Pascal VOC annotations (`voc`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from attngraft.errors import DataError
from attngraft.files import user_path
from attngraft.models.dense.rle import mask_api
from attngraft.opening import access_errors
from attngraft.tasks.detection.annotated import AnnotatedImages, ReadObjects
from attngraft.tasks.detection.coco import OBJECTS, read_coco
from attngraft.tasks.detection.config import ObjectDataConfig
from attngraft.tasks.detection.instances import has_nested, read_instances
from attngraft.tasks.detection.voc import is_voc, read_voc
from attngraft.tasks.detection.yolo import is_yolo, read_yolo
from attngraft.tasks.images.coco import coco_files
from attngraft.tasks.images.folders import SPLITS, has_masks
from attngraft.tasks.images.sources.base import check_classes
from attngraft.tasks.images.sources.splitting import divide

_READERS: dict[str, Callable[[Path, ObjectDataConfig], ReadObjects]] = {
    "coco": read_coco,
    "masks": read_instances,
    "yolo": read_yolo,
    "voc": read_voc,
}


@dataclass(frozen=True, kw_only=True)
class ObjectSource:
    """Images with objects, split."""

    where: str
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]  #: the data's own number of each class
    masks: bool  #: whether all objects have masks
    train: AnnotatedImages
    val: AnnotatedImages
    test: AnnotatedImages | None
    origin: str  #: description of the split, for the report
    #: parts of a random split; empty if it is not random
    drawn: Mapping[str, AnnotatedImages] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def parts(self) -> dict[str, AnnotatedImages]:
        """Return the images of each split."""
        return {"train": self.train, "val": self.val} | ({} if self.test is None else {"test": self.test})


@access_errors()
def open_objects(config: ObjectDataConfig, *, saved_split: Path | None = None) -> ObjectSource:
    """Find images, read their annotations, and split them; `saved_split` replaces the random split.

    Instance masks are read on access, all other annotations here.

    Raises:
        DataError: the data cannot be used; the message names file, entry and remedy, for up to 10 mistakes.
        ConfigError: faster-coco-eval is not installed.
    """
    mask_api()  # needed by the evaluation, and for all formats
    root = user_path(config.source)
    if not root.exists():
        raise DataError(f"{root}: no such file or folder; give a folder with images and annotations (task.data.source)")
    read = _READERS[config.format or _found_format(root, config)](root, config)
    check_classes(read.classes, where=str(root))
    train, val, test = (read.parts.get(split) for split in SPLITS)
    if train is None:
        raise DataError(f"{root}: no training images (train or training); found only {', '.join(read.parts)}")
    origin, drawn, notes = "the splits of the data", dict[str, AnnotatedImages](), read.notes
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
        origin, notes = division.origin, (*notes, *division.notes)
        train, val = train.take(np.flatnonzero(~division.in_val)), train.take(np.flatnonzero(division.in_val))
    for name, images in {"training": train, "validation": val}.items():
        if not len(images):
            raise DataError(f"{root}: no images for {name} ({origin}); add some, or change the split")
    return ObjectSource(
        where=str(root),
        classes=read.classes,
        category_ids=read.category_ids,
        masks=read.masks,
        train=train,
        val=val,
        test=test,
        origin=origin,
        drawn=drawn,
        notes=notes,
    )


def _found_format(root: Path, config: ObjectDataConfig) -> str:
    if config.masks is not None:
        return "masks"
    if root.suffix.lower() == ".json" or coco_files(root, OBJECTS):
        return "coco"
    if is_yolo(root) or root.is_file():
        return "yolo"
    if is_voc(root):
        return "voc"
    if has_masks(root) or has_nested(root):
        return "masks"
    raise DataError(
        f"{root}: no annotations of objects; use COCO (annotations/instances_train.json), instance masks (images/train and "
        "masks/train), YOLO (data.yaml, images/train and labels/train) or Pascal VOC (JPEGImages and Annotations)"
    )
