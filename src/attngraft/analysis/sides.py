"""Comparison of two models: images that only one of them classifies correctly, and accuracy by class."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attngraft.analysis.panels import png, table
from attngraft.analysis.predictions import LabelPredictions, predictions_of_all
from attngraft.analysis.request import Analysis, AnalysisRequest, Content
from attngraft.errors import UsageError
from attngraft.results.analysis import Grid, Picture, PictureRow, Pictures
from attngraft.results.sections import Cell

_MOST = 8  #: largest number of images shown as gained or lost


class ClassDifference(NamedTuple):
    """Accuracy of two models on one class."""

    name: str
    images: int
    first: float  #: accuracy of the first model
    second: float

    @property
    def difference(self) -> float:
        return self.second - self.first


class Sides(NamedTuple):
    """Indices of gained and lost images in image order, and differences by class."""

    gained: NDArray[np.intp]  #: wrong with the first model, correct with the second
    lost: NDArray[np.intp]  #: correct with the first model, wrong with the second
    classes: list[ClassDifference]  #: in the order of the class names


def changed_sides(
    first: NDArray[np.bool_], second: NDArray[np.bool_], *, labels: NDArray[np.integer], names: Sequence[str]
) -> Sides:
    """Find images that only one of two models classifies correctly, and compare accuracy by class.

    Args:
        first: whether the first model's prediction is correct, for each image, (N,).
        second: the same for the second model, with the images in the same order.
        labels: class index of each image, (N,).
        names: names of the classes.

    Raises:
        UsageError: the numbers of predictions and images differ, or a label has no name.
    """
    first, second, labels = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool), np.asarray(labels)
    if not len(first) == len(second) == len(labels):
        raise UsageError(
            f"first, second and labels must be for the same images; got {len(first)}, {len(second)} and {len(labels)}"
        )
    if len(labels) and not (labels.min() >= 0 and labels.max() < len(names)):
        raise UsageError(f"labels must be less than the number of class names, {len(names)}; got {labels.max()}")
    classes = []
    for index, name in enumerate(names):
        of_class = labels == index
        if of_class.any():
            accuracies = float(first[of_class].mean()), float(second[of_class].mean())
            classes.append(ClassDifference(name, int(of_class.sum()), *accuracies))
    return Sides(np.flatnonzero(~first & second), np.flatnonzero(first & ~second), classes)


def run(request: AnalysisRequest) -> Content:
    names = request.names
    (first, second), images = predictions_of_all(request)
    sides = changed_sides(
        first.predicted == first.target, second.predicted == second.target, labels=first.target, names=first.classes
    )
    rows: list[list[Cell]] = [
        [
            side,
            first.names[index],
            *(first.classes[each[index]] for each in (first.target, first.predicted, second.predicted)),
        ]
        for side, indices in (("gained", sides.gained), ("lost", sides.lost))
        for index in indices
    ]
    rows += [["class", each.name, None, each.first, each.second] for each in sides.classes]
    return Content(
        note=f"On {images}. Gained: {names[0]} is wrong and {names[1]} is correct; lost: the reverse. Below each image are "
        f"the predictions of {names[0]} and {names[1]}. At most {_MOST} of each are shown, evenly spaced; the table "
        "has all of them, and the accuracy of both models by class. With a single run of each, some images "
        "change sides because of the seed alone.",
        panels=[
            *_pictures(request, first, second, sides),
            Grid(
                title="accuracy by class",
                rows=[each.name for each in sides.classes],
                columns=names,
                row_axis="true class",
                column_axis="model",
                cells=[[each.first, each.second] for each in sides.classes],
                low=0.0,
                high=1.0,
            ),
        ],
        table=table(["side", "image", "true class", names[0], names[1]], rows),
        numbers={
            "gained": float(len(sides.gained)),
            "lost": float(len(sides.lost)),
            "of images": float(len(first.names)),
        },
    )


def _pictures(
    request: AnalysisRequest, first: LabelPredictions, second: LabelPredictions, sides: Sides
) -> list[Pictures]:
    """Return examples of gained and lost images; empty if the image set lacks a predicted image."""
    by_name = {} if request.image_set is None else {name: i for i, name in enumerate(request.image_set.names)}
    if any(name not in by_name for name in first.names):
        return []
    rows = []
    for side, indices in (("gained", sides.gained), ("lost", sides.lost)):
        if not len(indices):
            continue
        pictures = []
        for index in indices[np.linspace(0, len(indices) - 1, min(_MOST, len(indices))).round().astype(int)]:
            if request.use_saved_predictions:
                request.progress(1)  # otherwise, images are counted when the models process them
            image = request.images.open(by_name[first.names[index]])
            predicted = (first.classes[each.predicted[index]] for each in (first, second))
            pictures.append(Picture(caption=" / ".join(predicted), image=png(request.models[0].view(image))))
        rows.append(PictureRow(name=side, pictures=pictures))
    return [Pictures(title="images gained and lost", rows=rows)] if rows else []


ANALYSIS = Analysis(
    name="sides",
    title="Images gained and lost",
    summary="images that only one of two models gets right, and accuracy by class",
    source="",
    run=run,
    models=(2, 2),
    predictions="shown",
    per_image=True,
)
