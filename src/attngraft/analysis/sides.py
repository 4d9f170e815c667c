"""Two models on the same images: which images changed sides, and in which classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attngraft.errors import UsageError


class ClassDifference(NamedTuple):
    """Of one class."""

    name: str
    images: int
    first: float  #: share of them that the first model gets right
    second: float

    @property
    def difference(self) -> float:
        return self.second - self.first


class Sides(NamedTuple):
    """Places among the images, in their order."""

    gained: NDArray[np.intp]  #: wrong with the first model, right with the second
    lost: NDArray[np.intp]  #: right with the first, wrong with the second
    classes: list[ClassDifference]  #: in the order of their names' places


def changed_sides(
    first: NDArray[np.bool_], second: NDArray[np.bool_], *, labels: NDArray[np.integer], names: Sequence[str]
) -> Sides:
    """Compare what two models get right.

    Args:
        first: whether the first model is right about each image, (N,).
        second: the same of the second, about the same images in the same order.
        labels: the class of each image, (N,).
        names: of the classes.

    Raises:
        UsageError: not as many answers as images, or a label without a name.
    """
    first, second, labels = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool), np.asarray(labels)
    if not len(first) == len(second) == len(labels):
        raise UsageError(f"{len(first)} and {len(second)} answers about {len(labels)} images: compare the same images")
    if len(labels) and not (labels.min() >= 0 and labels.max() < len(names)):
        raise UsageError(f"labels go up to {labels.max()}, and {len(names)} classes have names")
    classes = []
    for place, name in enumerate(names):
        here = labels == place
        if here.any():
            shares = float(first[here].mean()), float(second[here].mean())
            classes.append(ClassDifference(name, int(here.sum()), *shares))
    return Sides(np.flatnonzero(~first & second), np.flatnonzero(first & ~second), classes)
