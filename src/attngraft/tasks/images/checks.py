"""Checks that refuse unusable labeled images before training starts."""

from __future__ import annotations

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.sources import Images, ImageSource


def class_counts(images: Images, classes: int) -> np.ndarray:
    """Return the number of images of each class, (classes,)."""
    if images.labels.ndim == 2:
        return np.asarray(images.labels.sum(axis=0, dtype=np.int64))
    return np.bincount(images.labels, minlength=classes)


def check_amount(source: ImageSource) -> None:
    """Refuse data with too few images or classes, before they are split.

    Raises:
        DataError: no image, one image, one class, an empty class.
    """
    total = len(source.train) + (len(source.val) if source.val is not None else 0)
    if total == 0:
        raise DataError(f"{source.where}: holds no images")
    if total == 1:
        raise DataError(f"{source.where}: holds a single image; training needs several of each of at least two classes")
    if len(source.classes) == 1:
        raise DataError(f"{source.where}: holds a single class, {source.classes[0]!r}; training needs at least two")
    split = "training images" if source.val is not None else "images"
    _refuse_empty(source, class_counts(source.train, len(source.classes)), split)


def check_split(source: ImageSource, val: Images) -> None:
    """Refuse splits that do not fit each other, and an unreadable first image.

    Raises:
        DataError: an empty split; a class without images in one of them; an unreadable image.
    """
    remedy = "add some, or change the split"
    if source.multilabel:
        remedy = (
            "an image that is the only one with one of its labels is for training: add images, use fewer labels with "
            "task.data.classes, or name a validation split with task.data.val_split"
        )
    for name, images in (("training", source.train), ("validation", val)):
        if len(images) == 0:
            raise DataError(f"{source.where}: no images are left for {name} ({source.origin}); {remedy}")
        _refuse_empty(source, class_counts(images, len(source.classes)), f"{name} images")
    val.open(0)


def classes_without_images(source: ImageSource, val: Images) -> list[str]:
    """Return notes on labels without images in one of the splits of multi-label data.

    They are not refused: a rare label cannot be left out without the other labels of its images.
    """
    notes = []
    for name, images in (("training", source.train), ("validation", val)):
        counts = class_counts(images, len(source.classes))
        empty = [label for label, count in zip(source.classes, counts, strict=True) if count == 0]
        if source.multilabel and empty:
            notes.append(f"classes without {name} images: {', '.join(empty)}")
    return notes


def refuse_other_labels(source: ImageSource, *, task: str, multilabel: bool) -> None:
    """Refuse labels of another kind than the task's.

    Raises:
        DataError: one label per image for a multi-label task, or the reverse.
    """
    if source.multilabel and not multilabel:
        raise DataError(
            f"{source.where}: its images have several labels each, but the task {task} takes one; "
            "use --recipe multilabel (in a recipe of your own: base: multilabel, or task.name: multilabel)"
        )
    if multilabel and not source.multilabel:
        raise DataError(
            f"{source.where}: its images have one label each, but the task {task} takes several; "
            "remove --recipe multilabel (in a recipe of your own: task.name: classification), or give a table with a "
            "column of label lists, such as cat|dog"
        )


def _refuse_empty(source: ImageSource, counts: np.ndarray, what: str) -> None:
    if source.multilabel:
        return
    empty = [name for name, count in zip(source.classes, counts, strict=True) if count == 0]
    if not empty:
        return
    named = ", ".join(repr(name) for name in empty[:8]) + (", ..." if len(empty) > 8 else "")
    plural = "class" if len(empty) == 1 else "classes"
    raise DataError(
        f"{source.where}: {plural} {named}: no {what}; add some, or exclude {'it' if len(empty) == 1 else 'them'} with "
        "task.data.classes (training and validation must have the same classes)"
    )
