"""Scores of ranked and of given labels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from scipy.stats import rankdata
from torchmetrics.functional.classification import binary_average_precision


def image_average_precision(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Each image's average precision over its ranked labels; (N,) from scores and labels (N, classes).

        AP_i = mean over i's labels y of |labels of i ranked up to y| / |classes ranked up to y|

    An image without any label, or with all of them, has 1: every order is right. The mean over images is the label
    ranking average precision (scikit-learn's `label_ranking_average_precision_score`).
    """
    present = labels.astype(bool)
    among_all = rankdata(-scores.astype(np.float64), method="max", axis=1)
    among_present = rankdata(np.where(present, -scores.astype(np.float64), np.inf), method="max", axis=1)
    precision = np.where(present, among_present / among_all, 0.0)
    count = present.sum(axis=1)
    return np.where(count == 0, 1.0, precision.sum(axis=1) / np.maximum(count, 1))


def class_average_precision(scores: np.ndarray, labels: np.ndarray) -> list[float | None]:
    """Each class's average precision over ranked images; None for a class that no image has."""
    ranked, there = torch.from_numpy(scores.astype(np.float64)).sigmoid(), torch.from_numpy(labels.astype(np.int64))
    return [
        float(binary_average_precision(ranked[:, i], there[:, i])) if there[:, i].any() else None
        for i in range(scores.shape[1])
    ]


def label_counts(scores: np.ndarray, labels: np.ndarray, *, threshold: float) -> Mapping[str, np.ndarray]:
    """By class how many images have the label (`there`), are given it (`given`), both (`right`); scores are logits."""
    given = scores.astype(np.float64) >= np.log(threshold / (1 - threshold))
    present = labels.astype(bool)
    return {"there": present.sum(0), "given": given.sum(0), "right": (given & present).sum(0)}


def mean_of_known(values: list[float | None]) -> float:
    """The mean of those that are not None, of which there must be one."""
    return float(np.mean([value for value in values if value is not None]))
