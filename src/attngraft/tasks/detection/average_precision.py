"""Average precision of detections, for any counts of the images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attngraft.results.measured import Statistic

RECALLS = np.linspace(0, 1, 101)
_AT_ONCE = 2**21  #: number of (resample, detection) pairs in memory at a time


@dataclass(frozen=True, eq=False)
class Detections:
    """Detections of all images at some thresholds, and the numbers of objects.

    Resampling an image resamples its detections and its objects.
    """

    lengths: np.ndarray  #: (N,), number of detections of each image
    scores: np.ndarray  #: (D,)
    labels: np.ndarray  #: (D,)
    matched: np.ndarray  #: (D, T) bool
    ignored: np.ndarray  #: (D, T) bool
    objects: np.ndarray  #: (N, K), number of objects that count of each class

    def take(self, order: np.ndarray) -> Detections:
        """Return those of the images with the indices `order`, (M,)."""
        starts = np.cumsum([0, *self.lengths])
        rows = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in order] or [np.zeros(0, int)]).astype(int)
        return Detections(
            self.lengths[order],
            self.scores[rows],
            self.labels[rows],
            self.matched[rows],
            self.ignored[rows],
            self.objects[order],
        )


@dataclass(frozen=True, eq=False)
class DetectionPrecision(Statistic):
    """The mean over classes of the average precision, interpolated at 101 recalls, and averaged over thresholds.

        AP = mean over r in {0, 0.01, ..., 1} of max {precision(s) : recall(s) >= r}

    over scores s, where precision(s) is the share of matched ones among the detections that score at least s, and recall(s)
    that of the objects that they match, all weighted by the counts of their images. Ignored detections do not count. A
    class without objects is undefined. Equals the COCO evaluation.
    """

    detections: Detections

    @property
    def examples(self) -> int:
        return len(self.detections.lengths)

    @property
    def cost(self) -> float:
        return 6.0 * self.detections.matched.size + self.examples

    def parts(self, counts: np.ndarray) -> np.ndarray:
        objects = np.asarray(counts @ self.detections.objects, dtype=float)
        result = np.where(objects > 0, 0.0, np.nan)
        for label, groups in self._classes:
            for images, matched, thresholds in groups:
                rows = max(1, _AT_ONCE // max(1, len(images)))
                for start in range(0, len(counts), rows):
                    part = slice(start, start + rows)
                    weights = np.asarray(counts[part][:, images], dtype=float)
                    ranked = np.cumsum(weights, axis=1)
                    for column in thresholds:
                        value = _precision(weights, ranked, matched[:, column], objects[part, label])
                        result[part, label] += value / self.detections.matched.shape[1]
        return result

    def take(self, order: np.ndarray) -> DetectionPrecision:
        return DetectionPrecision(self.detections.take(order))

    @cached_property
    def _classes(self) -> list[tuple[int, list[tuple[np.ndarray, np.ndarray, list[int]]]]]:
        """For each class, groups of thresholds with the same ignored detections.

        A group has the images (D',) and matches (D', T) of the others in descending order of scores, and its thresholds.
        """
        return [(label, list(self._groups(label))) for label in np.unique(self.detections.labels).tolist()]

    def _groups(self, label: int) -> Iterator[tuple[np.ndarray, np.ndarray, list[int]]]:
        found = self.detections
        images = np.repeat(np.arange(len(found.lengths)), found.lengths)
        rows = np.flatnonzero(found.labels == label)
        rows = rows[np.argsort(-found.scores[rows], kind="stable")]
        groups: dict[bytes, list[int]] = {}
        for column in range(found.matched.shape[1]):
            groups.setdefault(found.ignored[rows, column].tobytes(), []).append(column)
        for columns in groups.values():
            kept = rows[~found.ignored[rows, columns[0]]]
            yield images[kept], found.matched[kept], columns


def _precision(weights: np.ndarray, ranked: np.ndarray, matched: np.ndarray, objects: np.ndarray) -> np.ndarray:
    """Return the average precision (R,), NaN without objects.

    Args:
        weights: counts of the images of the ranked detections, (R, D).
        ranked: their cumulative sums.
        matched: (D,) bool.
        objects: number of objects, (R,).
    """
    positives = np.flatnonzero(matched)
    if not len(positives):
        return np.where(objects > 0, 0.0, np.nan)
    right = np.cumsum(weights[:, positives], axis=1)
    precision = right / (ranked[:, positives] + np.spacing(1))
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        recall = right / objects[:, None]
    reached = np.searchsorted(
        RECALLS, recall, side="right"
    )  # recalls whose first sufficient rank is this one, or before
    steps = np.diff(reached, axis=1, prepend=0)
    return np.where(objects > 0, (steps * best).sum(axis=1) / len(RECALLS), np.nan)
