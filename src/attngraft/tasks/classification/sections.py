"""What the report says of a classifier beside its metrics: classes, confusions, reliability; from saved predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attngraft.results.sections import Cell, Column, Matrix, Section, Table
from attngraft.tasks.calibration import mean_over_seeds, reliability, share_or_none

MATRIX_LIMIT = 50  #: classes up to which the whole confusion matrix is kept
PAIRS = 20  #: confusions that are listed where there are more classes

Predictions = Mapping[str, np.ndarray]


def sections(predictions: Sequence[Predictions], *, classes: Sequence[str], counts: Mapping[str, int]) -> list[Section]:
    """Of the seeds' predictions: `target`, `predicted`, and the `confidence` in what is predicted; (N,) each.

    There is no reliability where a confidence is not a number. `counts` are of training, by class.
    """
    kept = [{name: each[name] for name in ("target", "predicted", "confidence")} for each in predictions]
    found = [_by_class(kept, classes, counts), _confusion(kept, classes)]
    if all(np.isfinite(each["confidence"]).all() for each in kept):
        found.append(_reliability(kept))
    return found


def _by_class(predictions: Sequence[Predictions], classes: Sequence[str], counts: Mapping[str, int]) -> Section:
    recalls, precisions, f1s = [], [], []
    support = np.bincount(predictions[0]["target"], minlength=len(classes))
    for each in predictions:
        right = np.bincount(each["target"][each["target"] == each["predicted"]], minlength=len(classes))
        guessed = np.bincount(each["predicted"], minlength=len(classes))
        recalls.append(share_or_none(right, support))
        precisions.append(share_or_none(right, guessed))
        f1s.append(
            [f1 if n else None for f1, n in zip(share_or_none(2 * right, guessed + support), support, strict=True)]
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
        note="Means over seeds, on the validation images. Recall: the share of the class's images that are found. "
        "Precision: the share of images given this class that are of it, not known where no seed ever gave it. F1: their "
        f"harmonic mean. To compare with: always giving {largest}, of most training images, is right {100 * share:.2f} % of "
        "the time.",
        table=Table(columns=columns, rows=rows),
    )


def _confusion(predictions: Sequence[Predictions], classes: Sequence[str]) -> Section:
    target = np.concatenate([each["target"] for each in predictions]).astype(np.int64)
    predicted = np.concatenate([each["predicted"] for each in predictions]).astype(np.int64)
    size = len(classes)
    note = "All seeds together."
    if size <= MATRIX_LIMIT:
        counts = np.bincount(target * size + predicted, minlength=size * size).reshape(size, size)
        matrix = Matrix(
            rows=list(classes),
            columns=list(classes),
            row_axis="true class",
            column_axis="predicted class",
            counts=counts.tolist(),
        )
        return Section(name="confusion", title="Which class is taken for which", note=note, matrix=matrix)
    wrong = target != predicted
    pairs, counts = np.unique(target[wrong] * size + predicted[wrong], return_counts=True)
    support = np.bincount(target, minlength=size)
    rows: list[list[Cell]] = []
    for place in np.argsort(-counts, kind="stable")[:PAIRS]:
        true, taken = divmod(int(pairs[place]), size)
        rows.append([classes[true], classes[taken], int(counts[place]), float(counts[place] / support[true])])
    columns = [
        Column(name="true class", kind="text"),
        Column(name="taken for", kind="text"),
        Column(name="times", kind="count"),
        Column(name="of the class", kind="share"),
    ]
    note += f" The {PAIRS} most frequent confusions; a matrix of {size} classes could not be read."
    return Section(
        name="confusion",
        title="Which class is taken for which",
        note=note,
        table=Table(columns=columns, rows=rows),
    )


def _reliability(predictions: Sequence[Predictions]) -> Section:
    stated = [each["confidence"] for each in predictions]
    found = reliability(stated, [each["predicted"] == each["target"] for each in predictions])
    return Section(
        name="reliability",
        title="How far its confidence can be believed",
        note="The probability of the class that is given, against the share of such images that are of it. On the diagonal "
        "a model is right as often as it says; below it is too sure of itself. ECE, the expected calibration error, is the "
        "mean distance from the diagonal over 15 bins, as a mean over seeds.",
        numbers={"ECE": float(np.mean(found.error_by_seed))},
        reliability=found,
    )
