"""Report sections of a multi-label model: scores by class, and calibration, from saved predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attngraft.results.sections import Column, Section, Table
from attngraft.tasks.calibration import mean_over_seeds, reliability_section, share_or_none
from attngraft.tasks.multilabel.evaluator import class_average_precision, image_average_precision, label_counts

Arrays = Mapping[str, np.ndarray]


def sections(
    predictions: Sequence[Arrays], *, classes: Sequence[str], threshold: float, counts: Mapping[str, int]
) -> list[Section]:
    """Return the sections for the predictions of each seed: `target` and `logits`, (N, classes) each.

    Calibration is left out if a logit is not finite. `counts` are training images by class.
    """
    arrays = [{name: each[name] for name in ("target", "logits")} for each in predictions]
    result = [_by_class(arrays, classes, threshold, np.array([counts[name] for name in classes]))]
    if all(np.isfinite(each["logits"]).all() for each in arrays):
        result.append(
            reliability_section(
                [(1 / (1 + np.exp(-each["logits"].astype(np.float64)))).reshape(-1) for each in arrays],
                [each["target"].reshape(-1) > 0 for each in arrays],
                title="Calibration",
                definition="Probability of a label, over all images and classes, against the share of them that apply.",
            )
        )
    return result


def _by_class(predictions: Sequence[Arrays], classes: Sequence[str], threshold: float, training: np.ndarray) -> Section:
    averages, recalls, precisions, f1s = [], [], [], []
    for each in predictions:
        counts = label_counts(each["logits"], each["target"], threshold=threshold)
        positives, predicted, correct = counts["positives"], counts["predicted"], counts["correct"]
        averages.append(class_average_precision(each["logits"], each["target"]))
        recalls.append(share_or_none(correct, positives))
        precisions.append(share_or_none(correct, predicted))
        f1 = share_or_none(2 * correct, positives + predicted)
        f1s.append([value if n else None for value, n in zip(f1, positives, strict=True)])
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
        f"Recall, precision and F1: with labels predicted from a probability of {threshold:g}. They are empty for classes "
        "without images, as is precision if no seed predicts the class. For comparison: ranking the classes of every image "
        f"by their number of training images has an average precision by image of {100 * by_counts:.2f} %.",
        table=Table(columns=columns, rows=[list(row) for row in zip(classes, support, *means, strict=True)]),
    )
