"""Metrics of detections: average precision and recall of boxes, masks and boundaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from attngraft.models.dense.rle import mask_api
from attngraft.results.column_rules import COUNT, SHARE, ColumnRules
from attngraft.results.measured import ClosedForm, Measured, Statistic
from attngraft.results.records import RecordTable
from attngraft.results.sections import Metric
from attngraft.tasks.detection.average_precision import DetectionPrecision, Detections
from attngraft.tasks.detection.matching import (
    KINDS,
    RANGES,
    THRESHOLDS,
    IouType,
    boundary_ious,
    box_ious,
    error_kinds,
    ignored_objects,
    mask_ious,
    match,
)
from attngraft.tasks.detection.objects import Objects, RunLengths

FLOOR = "floor_"  #: prefix of the columns of the detections without training, see `floor`
_THRESHOLDS = {"": slice(None), "50": slice(0, 1), "75": slice(5, 6)}  #: indices in `THRESHOLDS` by name


def _metrics() -> dict[str, Metric]:
    found = {}
    for kind in ("mask", "box"):
        for name in _THRESHOLDS:
            found[f"{kind}_ap{name}"] = Metric(label=f"{kind} AP{name}", share=True)
        for area in RANGES:
            if area != "all":
                found[f"{kind}_ap_{area}"] = Metric(
                    label=f"{kind} AP of {area} objects", column=f"{kind} AP {area}", share=True
                )
        found[f"{kind}_ar"] = Metric(label=f"{kind} average recall", column=f"{kind} AR", share=True)
    found["boundary_ap"] = Metric(label="boundary AP", share=True)
    return found


METRICS = _metrics()

_BITS = (0.0, 2.0 ** len(THRESHOLDS) - 1)  #: range of sets of thresholds
_OF_DETECTIONS = {"confidence": SHARE, "label": COUNT} | {
    f"{kind}_{name}": _BITS for kind in ("mask", "box", "boundary") for name in ("matched", "ignored")
}
RULES = ColumnRules(
    ranges={
        **{f"{prefix}{name}": limits for prefix in ("", FLOOR) for name, limits in _OF_DETECTIONS.items()},
        "true_label": COUNT,
        "true_ignored": SHARE,
        "kind": (0.0, len(KINDS) - 1.0),
    },
    truth=["true_label", "true_ignored"],
)


def image_statistics(
    scores: np.ndarray,
    labels: np.ndarray,
    boxes: np.ndarray,
    masks: Sequence[RunLengths] | None,
    objects: Objects,
    *,
    boundaries: bool = True,
) -> dict[str, np.ndarray]:
    """Return the matches of an image's detections, from which all metrics are computed.

    Args:
        scores, labels, boxes: of the detections, (D,), (D,), (D, 4), in descending order of scores.
        masks: of the detections, (D,); None: boxes only.
        objects: the annotated objects.
        boundaries: also match boundaries, which takes longer.
    """
    true = {"true_labels": objects.labels, "true_areas": objects.areas, "crowd": objects.crowd}
    ious: dict[IouType, np.ndarray] = {"box": box_ious(boxes, objects.boxes, objects.crowd)}
    areas = {"box": np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)}
    if masks is not None and objects.masks is not None:
        ious["mask"] = mask_ious(masks, objects.masks, objects.crowd)
        areas["mask"] = np.array(mask_api().area(list(masks)) if masks else [], dtype=float)
        if boundaries:
            ious["boundary"], areas["boundary"] = boundary_ious(masks, objects.masks, objects.crowd), areas["mask"]
    found: dict[str, Any] = {
        "confidence": np.asarray(scores, dtype=np.float32),
        "label": np.asarray(labels, dtype=np.int32),
        "true_label": np.asarray(objects.labels, dtype=np.int32),
        "true_ignored": ignored_objects(objects.areas, objects.crowd).T.astype(np.uint8),
    }
    for kind, each in ious.items():
        ranges = ("all",) if kind == "boundary" else tuple(RANGES)
        matched, ignored = match(each, labels=labels, areas=areas[kind], ranges=ranges, **true)
        found |= {f"{kind}_matched": matched, f"{kind}_ignored": ignored}
    main: IouType = "mask" if "mask" in ious else "box"
    found["kind"] = error_kinds(
        ious[main],
        found[f"{main}_matched"][:, 0],
        found[f"{main}_ignored"][:, 0],
        labels=labels,
        true_labels=objects.labels,
        crowd=objects.crowd,
    )
    return found


def measure(table: RecordTable, *, classes: int, prefix: str = "") -> Measured:
    """Return the metrics of detections, or of those with a prefix of their columns (`FLOOR`).

    Sizes of which there are no objects have no metric.
    """
    lengths = np.array([len(each) for each in table[f"{prefix}confidence"]])
    scores, labels = (_joined(table[f"{prefix}{name}"]) for name in ("confidence", "label"))
    objects = np.repeat(np.arange(len(lengths)), [len(each) for each in table["true_label"]])
    true_labels, true_ignored = (_joined(table[name]) for name in ("true_label", "true_ignored"))
    true_ignored = true_ignored.reshape(-1, len(RANGES)).astype(bool)
    statistics: dict[str, Statistic] = {}
    for kind in ("mask", "box", "boundary"):
        if f"{prefix}{kind}_matched" not in table:
            continue
        matched, ignored = (_bits(table[f"{prefix}{kind}_{name}"]) for name in ("matched", "ignored"))
        for index, area in enumerate(RANGES if kind != "boundary" else ("all",)):
            counted = ~true_ignored[:, index]
            if area != "all" and not counted.any():
                continue
            numbers = sparse.coo_array(
                (counted.astype(float), (objects, true_labels)), shape=(len(lengths), classes)
            ).toarray()
            whole = area == "all" and kind != "boundary"
            for name, chosen in _THRESHOLDS.items() if whole else (("", slice(None)),):
                found = Detections(
                    lengths, scores, labels, matched[:, index, chosen], ignored[:, index, chosen], objects=numbers
                )
                statistics[f"{kind}_ap{name}" if area == "all" else f"{kind}_ap_{area}"] = DetectionPrecision(found)
                if whole and not name:
                    statistics[f"{kind}_ar"] = _recall(found, classes)
    return Measured(values={name: each.point for name, each in statistics.items()}, statistics=statistics)


def _recall(found: Detections, classes: int) -> Statistic:
    """Return the recall by all detections, as a mean over thresholds and classes."""
    images = np.repeat(np.arange(len(found.lengths)), found.lengths)
    right = (found.matched & ~found.ignored).mean(axis=1)
    shape = (len(found.lengths), classes)
    summed = sparse.coo_array((right, (images, found.labels)), shape=shape).tocsr()
    summands = sparse.hstack([summed, sparse.csr_array(found.objects)], format="csr")
    return ClosedForm(summands, lambda sums: sums[:, :classes] / sums[:, classes:])


def _joined(column: Any) -> np.ndarray:
    rows = list(column)
    return np.concatenate(rows) if rows else np.zeros(0)


def _bits(column: Any) -> np.ndarray:
    """Return bit sets (D, ranges) of all images as bool (D, ranges, T)."""
    sets = _joined(column).astype(np.int64)
    return (sets[..., None] >> np.arange(len(THRESHOLDS)) & 1).astype(bool)


def kinds_of_best(columns: Mapping[str, Any]) -> tuple[np.ndarray, int]:
    """Return how many of the best detections are of each kind, and the number of objects.

    The best detections are as many as there are objects, by score, in all images.
    """
    kept, _ = best_detections(columns)
    kinds = [kind[rows] for kind, rows in zip(columns["kind"], kept, strict=True)]
    objects = sum(int((ignored[:, 0] == 0).sum()) for ignored in columns["true_ignored"])
    return np.bincount(_joined(kinds).astype(int), minlength=len(KINDS)), objects


def best_detections(columns: Mapping[str, Any]) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the indices of each image's detections among the best, see `kinds_of_best`, and its F1 (N,).

    F1 = 2 right / (detections + objects)
    """
    objects = np.array([(ignored[:, 0] == 0).sum() for ignored in columns["true_ignored"]])
    lengths = np.array([len(each) for each in columns["confidence"]])
    best = np.zeros(lengths.sum(), dtype=bool)
    best[np.argsort(-_joined(columns["confidence"]), kind="stable")[: objects.sum()]] = True
    kept = [np.flatnonzero(each) for each in np.split(best, np.cumsum(lengths)[:-1])]
    right = np.array([(kind[rows] == 0).sum() for kind, rows in zip(columns["kind"], kept, strict=True)])
    found = np.array([len(rows) for rows in kept]) + objects
    return kept, np.divide(2 * right, found, out=np.ones(len(found)), where=found > 0)
