"""What the report says of a multi-label model beside its metrics: classes and reliability, from saved predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attngraft.results.sections import Column, Section, Table
from attngraft.tasks.calibration import mean_over_seeds, reliability, share_or_none
from attngraft.tasks.multilabel.scores import class_average_precision, image_average_precision, label_counts

Predictions = Mapping[str, np.ndarray]


def sections(
    predictions: Sequence[Predictions], *, classes: Sequence[str], threshold: float, counts: Mapping[str, int]
) -> list[Section]:
    """Of the seeds' predictions: `target` and `logits` (N, classes). There is no reliability where a logit is no number.

    `counts` are of training: how many images have each class.
    """
    kept = [{name: each[name] for name in ("target", "logits")} for each in predictions]
    found = [_by_class(kept, classes, threshold, np.array([counts[name] for name in classes]))]
    if all(np.isfinite(each["logits"]).all() for each in kept):
        found.append(_reliability(kept))
    return found


def _by_class(
    predictions: Sequence[Predictions], classes: Sequence[str], threshold: float, training: np.ndarray
) -> Section:
    averages, recalls, precisions, f1s = [], [], [], []
    for each in predictions:
        counts = label_counts(each["logits"], each["target"], threshold=threshold)
        there, given, right = counts["there"], counts["given"], counts["right"]
        averages.append(class_average_precision(each["logits"], each["target"]))
        recalls.append(share_or_none(right, there))
        precisions.append(share_or_none(right, given))
        f1s.append([f1 if n else None for f1, n in zip(share_or_none(2 * right, there + given), there, strict=True)])
    columns = [
        Column(name="class", kind="text"),
        Column(name="images", kind="count", role="common"),
        Column(name="average precision", kind="share", role="compared"),
        Column(name="recall", kind="share"),
        Column(name="precision", kind="share"),
        Column(name="F1", kind="share", role="compared"),
    ]
    target = predictions[0]["target"]
    by_counts = image_average_precision(np.broadcast_to(training, target.shape), target).mean()
    support = target.sum(axis=0, dtype=np.int64).tolist()
    means = (mean_over_seeds(values) for values in (averages, recalls, precisions, f1s))
    return Section(
        name="classes",
        title="Class by class",
        note="Means over seeds, on the validation images. Average precision: over images ranked by the class's score. "
        f"Recall, precision and F1: of labels given from a probability of {threshold:g} on. They are not "
        "known where no image has the class, nor is precision where no seed ever gave it. To compare "
        f"with: classes ranked by how many training images have them, alike for every image, have an average precision by "
        f"image of {100 * by_counts:.2f} %.",
        table=Table(columns=columns, rows=[list(row) for row in zip(classes, support, *means, strict=True)]),
    )


def _reliability(predictions: Sequence[Predictions]) -> Section:
    stated = [(1 / (1 + np.exp(-each["logits"].astype(np.float64)))).reshape(-1) for each in predictions]
    found = reliability(stated, [each["target"].reshape(-1) > 0 for each in predictions])
    return Section(
        name="reliability",
        title="How far its probabilities can be believed",
        note="The stated probability of a label, over all images and classes, against the share of them that are there. "
        "ECE, the expected calibration error, is the mean distance from the diagonal over 15 bins, as a mean over seeds.",
        numbers={"ECE": float(np.mean(found.error_by_seed))},
        reliability=found,
    )
