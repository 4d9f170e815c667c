"""Report sections of a classifier: scores by class, confusion matrix and calibration, from saved predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attngraft.results.sections import Cell, Column, Matrix, Section, Table
from attngraft.tasks.calibration import mean_over_seeds, reliability_section, share_or_none

MATRIX_LIMIT = 50  #: classes up to which the report has the whole confusion matrix
PAIRS = 20  #: most confusions listed beyond that

Arrays = Mapping[str, np.ndarray]


def sections(predictions: Sequence[Arrays], *, classes: Sequence[str], counts: Mapping[str, int]) -> list[Section]:
    """Return the sections for the predictions of each seed: `target`, `predicted` and `confidence`, (N,) each.

    Calibration is left out if a confidence is not finite. `counts` are training images by class.
    """
    arrays = [{name: each[name] for name in ("target", "predicted", "confidence")} for each in predictions]
    result = [_by_class(arrays, classes, counts), _confusion(arrays, classes)]
    if all(np.isfinite(each["confidence"]).all() for each in arrays):
        result.append(
            reliability_section(
                [each["confidence"] for each in arrays],
                [each["predicted"] == each["target"] for each in arrays],
                title="Calibration",
                definition="Probability of the predicted class against the share of such images that are of that class. On "
                "the diagonal a model is correct as often as its confidence states; below it is overconfident.",
            )
        )
    return result


def _by_class(predictions: Sequence[Arrays], classes: Sequence[str], counts: Mapping[str, int]) -> Section:
    recalls, precisions, f1s = [], [], []
    support = np.bincount(predictions[0]["target"], minlength=len(classes))
    for each in predictions:
        correct = np.bincount(each["target"][each["target"] == each["predicted"]], minlength=len(classes))
        predicted = np.bincount(each["predicted"], minlength=len(classes))
        recalls.append(share_or_none(correct, support))
        precisions.append(share_or_none(correct, predicted))
        f1s.append(
            [f1 if n else None for f1, n in zip(share_or_none(2 * correct, predicted + support), support, strict=True)]
        )
    columns = [
        Column(name="class", kind="text"),
        Column(name="images", kind="count", role="common"),
        Column(name="recall", kind="share"),
        Column(name="precision", kind="share"),
        Column(name="F1", kind="share", role="compared"),
    ]
    means = (mean_over_seeds(values) for values in (recalls, precisions, f1s))
    rows = [list(row) for row in zip(classes, support.tolist(), *means, strict=True)]
    largest = max(classes, key=lambda name: counts[name])
    share = support[classes.index(largest)] / support.sum()
    return Section(
        name="classes",
        title="Class by class",
        note="Means over seeds, on the validation images. Recall: share of the class's images that are predicted as it. "
        "Precision: share of the images predicted as the class that are of it; empty for classes that no seed predicts. F1: "
        f"their harmonic mean. For comparison: always predicting {largest}, the class with the most training images, is "
        f"correct for {100 * share:.2f} % of the images.",
        table=Table(columns=columns, rows=rows),
    )


def _confusion(predictions: Sequence[Arrays], classes: Sequence[str]) -> Section:
    target = np.concatenate([each["target"] for each in predictions]).astype(np.int64)
    predicted = np.concatenate([each["predicted"] for each in predictions]).astype(np.int64)
    size, title, note = len(classes), "Confusion matrix", "All seeds together."
    if size <= MATRIX_LIMIT:
        counts = np.bincount(target * size + predicted, minlength=size * size).reshape(size, size)
        matrix = Matrix(
            rows=list(classes),
            columns=list(classes),
            row_axis="true class",
            column_axis="predicted class",
            counts=counts.tolist(),
        )
        return Section(name="confusion", title=title, note=note, matrix=matrix)
    wrong = target != predicted
    pairs, counts = np.unique(target[wrong] * size + predicted[wrong], return_counts=True)
    support = np.bincount(target, minlength=size)
    rows: list[list[Cell]] = []
    for index in np.argsort(-counts, kind="stable")[:PAIRS]:
        true, other = divmod(int(pairs[index]), size)
        rows.append([classes[true], classes[other], int(counts[index]), float(counts[index] / support[true])])
    columns = [
        Column(name="true class", kind="text"),
        Column(name="predicted class", kind="text"),
        Column(name="images", kind="count"),
        Column(name="share of the class", kind="share"),
    ]
    note += f" The {PAIRS} most frequent confusions; a matrix of {size} classes would be unreadable."
    return Section(name="confusion", title=title, note=note, table=Table(columns=columns, rows=rows))
