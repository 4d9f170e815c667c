"""Metrics of multi-label models, and report sections from saved predictions."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torchmetrics.functional.classification import binary_average_precision

from attngraft.results.measured import (
    MeanAveragePrecision,
    MeanScore,
    Measured,
    Statistic,
    macro_f1_of_labels,
    micro_f1_of_labels,
)
from attngraft.results.records import RecordTable
from attngraft.results.sections import Column, Section, Table
from attngraft.tasks.calibration import mean_over_seeds, recall_precision_f1, reliability_section

Arrays = Mapping[str, np.ndarray]


def measure(table: RecordTable, *, threshold: float) -> Measured:
    """Return the metrics as shares (0 to 1).

    `image_ap`, the default primary metric, is the mean over images of each image's average precision. `map` is the mean over
    classes of the average precision, `macro_f1` (mean over classes) and `micro_f1` (all decisions together) are at
    `threshold`; means over classes cover those that occur. `loss` is the binary cross entropy, mean over classes.
    """
    logits, target = table.array("logits"), table.array("target")
    present = target.astype(bool)
    precision = image_average_precision(logits, target)
    counts = label_counts(logits, target, threshold=threshold)
    values = {
        "image_ap": float(precision.mean()),
        "map": mean_of_known(class_average_precision(logits, target)),
        "macro_f1": mean_of_known(recall_precision_f1(**counts)[2]),
        "micro_f1": float(2 * counts["correct"].sum() / (counts["positives"] + counts["predicted"]).sum()),
    }
    decisions = decided(logits, threshold=threshold)
    statistics: dict[str, Statistic] = {
        "image_ap": MeanScore(precision),
        "map": MeanAveragePrecision(torch.from_numpy(logits.astype(np.float64)).sigmoid().numpy(), present),
        "macro_f1": macro_f1_of_labels(decisions, present),
        "micro_f1": micro_f1_of_labels(decisions, present),
    }
    if "loss" in table:  # earlier versions did not store the loss
        loss = table.array("loss")
        statistics["loss"], values["loss"] = MeanScore(loss), float(loss.mean(dtype=np.float64))
    return Measured(values=values, statistics=statistics)


def image_average_precision(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return each image's average precision over its ranked labels, (N,), from scores and labels (N, classes).

        AP_i = mean over the labels y of image i of (number of i's labels ranked up to y) / (rank of y)

    It is 1 for an image with no labels or with all of them, where every order is correct. The mean over images is the label
    ranking average precision (scikit-learn's `label_ranking_average_precision_score`).
    """
    from scipy.stats import rankdata  # slow to import

    present = labels.astype(bool)
    among_all = rankdata(-scores.astype(np.float64), method="max", axis=1)
    among_present = rankdata(np.where(present, -scores.astype(np.float64), np.inf), method="max", axis=1)
    precision = np.where(present, among_present / among_all, 0.0)
    count = present.sum(axis=1)
    return np.where(count == 0, 1.0, precision.sum(axis=1) / np.maximum(count, 1))


def class_average_precision(scores: np.ndarray, labels: np.ndarray) -> list[float | None]:
    """Return the average precision of each class over the ranked images; None for a class without images."""
    ranked, present = torch.from_numpy(scores.astype(np.float64)).sigmoid(), torch.from_numpy(labels.astype(np.int64))
    return [
        float(binary_average_precision(ranked[:, i], present[:, i])) if present[:, i].any() else None
        for i in range(scores.shape[1])
    ]


def label_counts(scores: np.ndarray, labels: np.ndarray, *, threshold: float) -> Mapping[str, np.ndarray]:
    """Return the numbers of images of each class: `positives`, `predicted` and `correct`, (classes,) each.

    `positives` have the label, `predicted` are predicted to have it, and `correct` are both. `scores` are logits.
    """
    predicted = decided(scores, threshold=threshold)
    present = labels.astype(bool)
    return {"positives": present.sum(0), "predicted": predicted.sum(0), "correct": (predicted & present).sum(0)}


def decided(scores: np.ndarray, *, threshold: float) -> np.ndarray:
    """Return whether each label is predicted, bool (N, classes), from the logits `scores`."""
    decisions: np.ndarray = scores.astype(np.float64) >= np.log(threshold / (1 - threshold))
    return decisions


def mean_of_known(values: list[float | None]) -> float:
    """Return the mean of the values that are not None; at least one must not be None."""
    return float(np.mean([value for value in values if value is not None]))


def sections(
    predictions: Sequence[Arrays], *, classes: Sequence[str], threshold: float, counts: Mapping[str, int]
) -> list[Section]:
    """Return the report sections for each seed's predictions: `target` and `logits`, (N, classes) each.

    Calibration is omitted if any logit is not finite. `counts` maps classes to their number of training images.
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
    by_seed = []
    for each in predictions:
        counts = label_counts(each["logits"], each["target"], threshold=threshold)
        average = class_average_precision(each["logits"], each["target"])
        by_seed.append((average, *recall_precision_f1(**counts)))
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
    means = map(mean_over_seeds, zip(*by_seed, strict=True))
    return Section(
        name="classes",
        title="Class by class",
        note="Means over seeds, on the evaluated images. Average precision: over images ranked by the class's score. "
        f"Recall, precision and F1: with labels predicted from a probability of {threshold:g}. They are empty for classes "
        "without images, as is precision if no seed predicts the class. For comparison: ranking the classes of every image "
        f"by their number of training images has an average precision by image of {100 * by_counts:.2f} %.",
        table=Table(columns=columns, rows=[list(row) for row in zip(classes, support, *means, strict=True)]),
    )
