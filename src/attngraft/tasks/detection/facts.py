"""Counts of a split's objects and sizes, which check its annotations and images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from attngraft.counting import counted
from attngraft.errors import DataError
from attngraft.tasks.detection.annotated import AnnotatedImages, Listed, ReadAnnotation
from attngraft.tasks.detection.instances import LabelMap
from attngraft.tasks.detection.objects import Objects
from attngraft.tasks.images.stored import image_size

SIZES = (32**2, 96**2)  #: areas from which objects are medium and large

_SAMPLE = 4000  #: largest number of images of a split that are opened before training


@dataclass(frozen=True, kw_only=True)
class ObjectFacts:
    """Counts of a split; those of instance masks are of a sample if there are more than 4,000 images."""

    objects: np.ndarray  #: (K,) number of objects of each class, without crowds
    crowds: int  #: number of crowds
    sizes: list[tuple[int, int]]  #: width and height of the images
    by_area: tuple[int, int, int]  #: number of small, medium and large objects, without crowds
    most: int  #: largest number of objects in an image, without crowds
    crowded: tuple[int, ...]  #: number of objects of each image, without crowds
    empty: int  #: number of images without objects
    twice: int  #: number of objects that have the class, box and area of another one of their image, to the pixel
    single: bool  #: whether the images have masks whose values are objects, and no mask has more than one


def read_facts(images: AnnotatedImages, classes: Sequence[str], *, name: str = "the split") -> ObjectFacts:
    """Check and count the annotations of a split, and check the sizes of its images.

    Annotations in memory are all counted; of instance masks, and of the images, an even sample of 4,000 is opened.

    Args:
        images: the split.
        classes: names of the classes.
        name: of the split, for messages.

    Raises:
        DataError: masks or images cannot be used, or there are no objects; the message has a line for each of up to 10.
    """
    chosen = range(0, len(images), max(1, -(-len(images) // _SAMPLE)))

    def attempt(index: int) -> Objects | str:
        try:
            size, real = images.size(index), image_size(images.images[index])
            if size != real:
                return (
                    f"{images.images[index]}: {real[0]} x {real[1]}, but its annotation is for {size[0]} x {size[1]}; "
                    "correct one of them"
                )
            return images.objects(index)
        except DataError as error:
            return str(error)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        opened = list(counted(threads.map(attempt, chosen), "images read", total=len(chosen)))
    Listed(each for each in opened if isinstance(each, str)).check()
    found = [each for each in opened if not isinstance(each, str)]
    indices: Sequence[int] = chosen
    if all(isinstance(each, ReadAnnotation) for each in images.annotations):
        indices = range(len(images))
        found = [images.objects(index) for index in indices]
    labels = np.concatenate([each.labels[~each.crowd] for each in found])
    areas = np.concatenate([each.areas[~each.crowd] for each in found])
    counts = tuple(int((~each.crowd).sum()) for each in found)
    if not len(labels):
        more = f" and {len(found) - 1} more images" if len(found) > 1 else ""
        raise DataError(f"{images.images[0]}{more} of {name}: no objects; annotate some, or change the split")
    rows = [np.column_stack([each.labels, each.boxes, each.areas, each.crowd]) for each in found if len(each)]
    bins = np.bincount(np.digitize(areas, SIZES), minlength=3)
    return ObjectFacts(
        objects=np.bincount(labels, minlength=len(classes)),
        crowds=sum(int(each.crowd.sum()) for each in found),
        sizes=[images.size(index) for index in indices],
        by_area=(int(bins[0]), int(bins[1]), int(bins[2])),
        most=max(counts),
        crowded=counts,
        empty=sum(len(each) == 0 for each in found),
        twice=sum(len(each) - len(np.unique(each.round(), axis=0)) for each in rows),
        single=len(images) > 1 and max(counts) == 1 and all(isinstance(each, LabelMap) for each in images.annotations),
    )


def notes_on(facts: dict[str, ObjectFacts], detections: int) -> list[str]:
    """Return notes on repeated objects, masks of one value, and images with more objects than `task.test.detections`."""
    notes = []
    if twice := sum(each.twice for each in facts.values()):
        notes.append(f"Objects that occur twice, with the same class, box and area: {twice}.")
    if all(each.single for each in facts.values()):
        notes.append(
            "No mask has more than one value besides 0, so that all its regions are one object; if they are several, give "
            "them the values 1, 2, ..."
        )
    number = sum(count > detections for each in facts.values() for count in each.crowded)
    most = max(each.most for each in facts.values())
    if not number:
        return notes
    return [
        *notes,
        f"Images with more than {detections} objects, of which the rest cannot be found: {number}, with up to {most}; use "
        f"--set task.test.detections={most}.",
    ]
