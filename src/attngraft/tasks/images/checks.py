"""What can be wrong with labelled images, found before training starts."""

from __future__ import annotations

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.sources import Images, Parts


def class_counts(images: Images, classes: int) -> np.ndarray:
    """How many images each class has; (classes,)."""
    if images.labels.ndim == 2:
        return np.asarray(images.labels.sum(axis=0, dtype=np.int64))
    return np.bincount(images.labels, minlength=classes)


def check_amount(parts: Parts) -> None:
    """Refuse, before anything is drawn from them, data that hold nothing to tell apart.

    Raises:
        DataError: no image, one image, one class, an empty class.
    """
    total = len(parts.train) + (len(parts.val) if parts.val is not None else 0)
    if total == 0:
        raise DataError(f"{parts.where}: holds no images")
    if total == 1:
        raise DataError(f"{parts.where}: holds a single image; training needs several of each of at least two classes")
    if len(parts.classes) == 1:
        raise DataError(f"{parts.where}: holds a single class, {parts.classes[0]!r}; there is nothing to tell apart")
    part = "training images" if parts.val is not None else "images"
    _refuse_empty(parts, class_counts(parts.train, len(parts.classes)), part)


def check_split(parts: Parts, val: Images) -> None:
    """Refuse parts that do not fit each other, or first images that cannot be read.

    Raises:
        DataError: a part without images; a class without images in one of them; an unreadable image.
    """
    for what, images in (("training", parts.train), ("validation", val)):
        if len(images) == 0:
            raise DataError(f"{parts.where}: no images are left for {what} ({parts.origin}); {_more_images(parts)}")
        _refuse_empty(parts, class_counts(images, len(parts.classes)), f"{what} images")
    val.open(0)


def _more_images(parts: Parts) -> str:
    if not parts.multilabel:
        return "add some, or divide them otherwise"
    return (
        "an image that alone has one of its labels is for training: add images, use fewer labels with task.data.classes, or "
        "name a validation part with task.data.val_split"
    )


def classes_without_images(parts: Parts, val: Images) -> list[str]:
    """Notes on classes that one part of multi-label data has no image of. They are not refused: labels come together,
    and one that is rare cannot be left out without its images' other labels."""
    notes = []
    for what, images in (("training", parts.train), ("validation", val)):
        counts = class_counts(images, len(parts.classes))
        empty = [name for name, count in zip(parts.classes, counts, strict=True) if count == 0]
        if parts.multilabel and empty:
            notes.append(f"classes without {what} images: {', '.join(empty)}")
    return notes


def refuse_other_labels(parts: Parts, *, task: str, multilabel: bool) -> None:
    """Refuse labels of the other kind than the task takes.

    Raises:
        DataError: one label per image where several are taken, or the other way round.
    """
    if parts.multilabel and not multilabel:
        raise DataError(
            f"{parts.where}: its images have several labels each, and the task {task} takes one; "
            "use --recipe multilabel (in a recipe of your own: base: multilabel, or task.name: multilabel)"
        )
    if multilabel and not parts.multilabel:
        raise DataError(
            f"{parts.where}: its images have one label each, and the task {task} takes several; "
            "do without --recipe multilabel (in a recipe of your own: task.name: classification), or give a table with a "
            "column of label lists, as in cat|dog"
        )


def _refuse_empty(parts: Parts, counts: np.ndarray, what: str) -> None:
    if parts.multilabel:
        return
    empty = [name for name, count in zip(parts.classes, counts, strict=True) if count == 0]
    if not empty:
        return
    named = ", ".join(repr(name) for name in empty[:8]) + (", ..." if len(empty) > 8 else "")
    plural = "class" if len(empty) == 1 else "classes"
    raise DataError(
        f"{parts.where}: {plural} {named}: no {what}; add some, or leave {'it' if len(empty) == 1 else 'them'} out with "
        "task.data.classes (training and validation must have the same classes)"
    )
