"""Images with boxes or instance masks, split into training, validation and test.

Sources are COCO annotations (`coco`), instance masks (`instances`), YOLO labels (`yolo`) and Pascal VOC annotations (`voc`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attngraft.errors import DataError
from attngraft.files import user_path
from attngraft.models.dense.rle import mask_api
from attngraft.opening import access_errors
from attngraft.tasks.detection.annotated import AnnotatedImages, ReadObjects
from attngraft.tasks.detection.coco import OBJECTS, read_coco
from attngraft.tasks.detection.config import ObjectDataConfig
from attngraft.tasks.detection.instances import has_nested, read_instances
from attngraft.tasks.detection.voc import is_voc, read_voc
from attngraft.tasks.detection.yolo import has_labels, is_yolo, read_yolo
from attngraft.tasks.images.coco import coco_files
from attngraft.tasks.images.folders import has_masks
from attngraft.tasks.images.sources.base import alike_classes, check_classes
from attngraft.tasks.images.split_source import SplitSource, split_images

_CLASSES = 20_000  #: largest number of classes; memory and time of the heads grow with it

_READERS: dict[str, Callable[[Path, ObjectDataConfig], ReadObjects]] = {
    "coco": read_coco,
    "masks": read_instances,
    "yolo": read_yolo,
    "voc": read_voc,
}


@dataclass(frozen=True, kw_only=True)
class ObjectSource(SplitSource[AnnotatedImages]):
    """Images with objects, split."""

    classes: tuple[str, ...]
    category_ids: tuple[int, ...]  #: the data's own number of each class
    masks: bool  #: whether all objects have masks


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
    if len(read.classes) > _CLASSES:
        raise DataError(f"{root}: {len(read.classes):,} classes, more than {_CLASSES:,}; remove those without objects")
    split = split_images(
        read.parts,
        config,
        root=root,
        origin="the splits of the data",
        notes=[*read.notes, *alike_classes(read.classes)],
        saved_split=saved_split,
    )
    return ObjectSource(classes=read.classes, category_ids=read.category_ids, masks=read.masks, **vars(split))


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
    if has_labels(root):
        return "yolo"  # for the message
    raise DataError(
        f"{root}: no annotations of objects; use COCO (annotations/instances_train.json), instance masks (images/train and "
        "masks/train), YOLO (data.yaml, images/train and labels/train) or Pascal VOC (JPEGImages and Annotations)"
    )
