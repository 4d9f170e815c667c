"""Matching of an image's detections to its objects, as in the COCO evaluation.

Detections of a class are matched in descending order of their scores, at ten thresholds of the IoU, for four ranges of the
objects' areas. Objects that are crowds, or outside of a range, are ignored: so are detections that match only them, and
unmatched detections outside of the range. Results are bit sets over the thresholds, which suffice for every average
precision. IoUs are those of faster-coco-eval, whose own matches cannot be read.

Source: T.-Y. Lin et al., "Microsoft COCO", 2014, and its evaluation code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from attngraft.models.dense.rle import mask_api
from attngraft.tasks.detection.objects import RunLengths

IouType = Literal["box", "mask", "boundary"]

THRESHOLDS = np.linspace(0.5, 0.95, 10)
#: areas in pixels, from and to
RANGES = {"all": (0, 1e10), "small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, 1e10)}
_BITS = 1 << np.arange(len(THRESHOLDS))
_DILATION = 0.02  #: width of boundaries, in parts of the image's diagonal


def box_ious(detected: np.ndarray, true: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """Return the IoUs (D, G) of boxes (left, top, right, bottom); for crowds, the share of the detection inside."""
    if not len(detected) or not len(true):
        return np.zeros((len(detected), len(true)))
    sides = [np.concatenate([each[:, :2], each[:, 2:] - each[:, :2]], axis=1).tolist() for each in (detected, true)]
    return np.asarray(mask_api().iou(*sides, crowd.astype(int).tolist()))


def mask_ious(detected: Sequence[RunLengths], true: Sequence[RunLengths], crowd: np.ndarray) -> np.ndarray:
    """Return the IoUs (D, G) of masks; for crowds, the share of the detection inside."""
    if not len(detected) or not len(true):
        return np.zeros((len(detected), len(true)))
    return np.asarray(mask_api().iou(list(detected), list(true), crowd.astype(int).tolist()))


def boundary_ious(detected: Sequence[RunLengths], true: Sequence[RunLengths], crowd: np.ndarray) -> np.ndarray:
    """Return the smaller of the IoU of the masks and of the bands inside of their contours, (D, G); see `mask_ious`."""
    found, wanted = ([mask_api().rleToBoundary(dict(each), _DILATION) for each in masks] for masks in (detected, true))
    whole = mask_ious(detected, true, crowd)
    return np.where(crowd[None], whole, np.minimum(whole, mask_ious(found, wanted, crowd)))


def match(
    ious: np.ndarray,
    *,
    labels: np.ndarray,
    areas: np.ndarray,
    true_labels: np.ndarray,
    true_areas: np.ndarray,
    crowd: np.ndarray,
    ranges: Sequence[str] = tuple(RANGES),
) -> tuple[np.ndarray, np.ndarray]:
    """Match detections, sorted by descending scores, to objects.

    Args:
        ious: (D, G).
        labels, areas: of the detections, (D,).
        true_labels, true_areas, crowd: of the objects, (G,).
        ranges: names in `RANGES`.

    Returns:
        Bit sets (D, ranges) uint16 over the thresholds: whether a detection is matched, and whether it is ignored.
    """
    limits = np.array([RANGES[name] for name in ranges])
    ignored_true = ignored_objects(true_areas, crowd, ranges)
    matched = np.zeros((len(labels), len(ranges), len(THRESHOLDS)), dtype=bool)
    ignored = np.zeros_like(matched)
    same = (labels[:, None] == true_labels[None]) & (ious >= THRESHOLDS[0])
    free = np.ones((len(ranges), len(THRESHOLDS), len(true_labels)), dtype=bool)
    for detection in np.flatnonzero(same.any(axis=1)):
        near = np.flatnonzero(same[detection])
        iou = ious[detection, near]
        fits = free[:, :, near] & (iou >= np.minimum(THRESHOLDS, 1 - 1e-10)[:, None])
        counted = fits & ~ignored_true[:, None, near]
        # an object that counts is preferred to one that is ignored; of equal IoUs the last
        fits = np.where(counted.any(axis=2, keepdims=True), counted, fits)
        best = len(near) - 1 - np.argmax(np.where(fits, iou, -1.0)[:, :, ::-1], axis=2)
        found = fits.any(axis=2)
        area, threshold = np.nonzero(found)
        chosen = near[best[area, threshold]]
        matched[detection] = found
        ignored[detection, area, threshold] = ignored_true[area, chosen]
        free[area, threshold, chosen] = crowd[chosen]
    outside = (areas[:, None] < limits[:, 0]) | (areas[:, None] > limits[:, 1])
    ignored |= ~matched & outside[:, :, None]
    return (matched @ _BITS).astype(np.uint16), (ignored @ _BITS).astype(np.uint16)


def ignored_objects(areas: np.ndarray, crowd: np.ndarray, ranges: Sequence[str] = tuple(RANGES)) -> np.ndarray:
    """Return which objects are ignored in each range, (ranges, G)."""
    limits = np.array([RANGES[name] for name in ranges])
    found: np.ndarray = crowd[None] | (areas[None] < limits[:, :1]) | (areas[None] > limits[:, 1:])
    return found


#: kinds of detections of `error_kinds`, in this order
KINDS = ("right", "duplicate", "wrong class", "localization", "background", "ignored")


def error_kinds(
    ious: np.ndarray,
    matched: np.ndarray,
    ignored: np.ndarray,
    *,
    labels: np.ndarray,
    true_labels: np.ndarray,
    crowd: np.ndarray,
) -> np.ndarray:
    """Return the index in `KINDS` of each detection at an IoU of 0.5, (D,) uint8.

    A detection without a match is a duplicate if an object of its class has an IoU of at least 0.5, of the wrong class if
    an object of another class has, badly localized if an object of its class has at least 0.1, else background.

    Args:
        matched, ignored: results of `match` for all areas, (D,).
    """
    own = (labels[:, None] == true_labels[None]) & ~crowd
    other = (labels[:, None] != true_labels[None]) & ~crowd
    conditions: list[Any] = [
        ignored & 1,
        matched & 1,
        ((ious >= 0.5) & own).any(axis=1),
        ((ious >= 0.5) & other).any(axis=1),
        ((ious >= 0.1) & own).any(axis=1),
    ]
    order = [KINDS.index(name) for name in ("ignored", "right", "duplicate", "wrong class", "localization")]
    conditions = [np.asarray(each, dtype=bool) for each in conditions]
    return np.select(conditions, order, KINDS.index("background")).astype(np.uint8)
