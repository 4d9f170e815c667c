"""Metrics of segmentation, from three counts of pixels per class and image.

    IoU_c = right_c / (predicted_c + true_c - right_c),    mIoU = mean over classes with predicted_c + true_c > 0
    acc_c = right_c / true_c,  mAcc = mean over classes with true_c > 0;    aAcc = sum right / sum true

Counts are summed over images before the division, so intervals resample images. Ignored pixels do not count.

    boundary mIoU   mIoU of the pixels on a boundary of the labels, `boundaries.boundary` (BiSA, Table 2)
    Boundary IoU    IoU of the parts of both masks within 2% of the diagonal from their own contour (Cheng et al., 2021)
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.results.column_rules import COUNT, ColumnRules
from attngraft.results.measured import ClosedForm, Measured
from attngraft.results.records import RecordTable
from attngraft.tasks.images.boundaries import IGNORED, boundary

WIDTHS = (1, 2, 4, 8)  #: radii of the boundaries
RADIUS = 2  #: of the metric `boundary_miou`
_DILATION = 0.02  #: Boundary IoU: width in parts of the diagonal


_COUNTS = ["right", "predicted", "true"]
_BANDS = [f"boundary_{name}" for name in _COUNTS]
_CONTOURS = ["contour_shared", "contour_union"]
RULES = ColumnRules(
    ranges=dict.fromkeys([*_COUNTS, *_BANDS, *_CONTOURS], COUNT),
    ordered=[(right, each) for right, *wholes in (_COUNTS, _BANDS, _CONTOURS) for each in wholes],
    truth=["true"],
)


def mask_statistics(
    predicted: Tensor, label: Tensor, classes: int, *, boundaries: bool = True
) -> dict[str, np.ndarray]:
    """Return the counts of one image as int64 arrays.

    Args:
        predicted: (H, W), classes.
        label: (H, W), classes and `IGNORED`.

    Returns:
        `right`, `predicted` and `true` (K,), the same with the prefix `boundary_` for each radius (4, K), and
        `contour_shared` and `contour_union` (K,) of Boundary IoU; with `boundaries=False` only the first three.
    """
    predicted, label = predicted.long(), label.long()
    known = label != IGNORED
    found = _counts(predicted, label, known, classes)
    if not boundaries:
        return found
    bands = [
        _counts(predicted, label, boundary(label[None], radius=radius)[0], classes) for radius in WIDTHS
    ]  # fmt: skip
    found |= {f"boundary_{name}": np.stack([band[name] for band in bands]) for name in found}
    distance = max(1, round(_DILATION * float(np.hypot(*label.shape))))
    shared, union = np.zeros(classes, dtype=np.int64), np.zeros(classes, dtype=np.int64)
    present = torch.unique(torch.cat([predicted[known], label[known]]))
    for number in present.tolist():
        mine, theirs = (_contour((each == number) & known, distance) for each in (predicted, label))
        shared[number], union[number] = int((mine & theirs).sum()), int((mine | theirs).sum())
    return found | {"contour_shared": shared, "contour_union": union}


def _counts(predicted: Tensor, label: Tensor, counted: Tensor, classes: int) -> dict[str, np.ndarray]:
    guess, truth = predicted[counted], label[counted]
    pairs = {"right": truth[guess == truth], "predicted": guess, "true": truth}
    return {name: torch.bincount(each, minlength=classes).cpu().numpy() for name, each in pairs.items()}


def _contour(mask: Tensor, distance: int) -> Tensor:
    """Return the pixels of a mask (H, W) at most `distance` from outside of it; the image's border counts as outside."""
    outside = F.pad(~mask, (1, 1, 1, 1), value=True)[None, None].float()
    for _ in range(distance):  # `distance` erosions by a 3 x 3 square
        outside = F.max_pool2d(outside, 3, stride=1, padding=1)
    return mask & (outside[0, 0, 1:-1, 1:-1] > 0)


def ious(sums: np.ndarray) -> np.ndarray:
    """Return IoU (R, K) from right, predicted and true counts (R, 3 K); NaN for missing classes."""
    right, predicted, true = np.split(sums, 3, axis=1)
    return np.where(predicted + true > 0, right / (predicted + true - right), np.nan)


def accuracies(sums: np.ndarray) -> np.ndarray:
    """Return the accuracy of each class (R, K) from right and true counts (R, 2 K); NaN for missing classes."""
    right, true = np.split(sums, 2, axis=1)
    return np.where(true > 0, right / true, np.nan)


def measure(table: RecordTable) -> Measured:
    """Return mIoU, mAcc, aAcc, boundary mIoU (radius 2) and Boundary IoU; boundaries only if they were counted."""
    right, predicted, true = (table.array(name).astype(float) for name in ("right", "predicted", "true"))
    total = np.stack([right.sum(1), true.sum(1)], axis=1)
    statistics = {
        "miou": ClosedForm(np.concatenate([right, predicted, true], axis=1), ious),
        "macc": ClosedForm(np.concatenate([right, true], axis=1), accuracies),
        "aacc": ClosedForm(total, lambda sums: sums[:, 0] / sums[:, 1]),
    }
    if "boundary_right" in table:
        band = [table.array(f"boundary_{name}")[:, WIDTHS.index(RADIUS)] for name in ("right", "predicted", "true")]
        statistics["boundary_miou"] = ClosedForm(np.concatenate(band, axis=1).astype(float), ious)
        contours = [table.array(f"contour_{name}").astype(float) for name in ("shared", "union")]
        statistics["boundary_iou"] = ClosedForm(np.concatenate(contours, axis=1), accuracies)
    return Measured(values={name: each.point for name, each in statistics.items()}, statistics=statistics)


def class_ious(columns: Mapping[str, Any]) -> np.ndarray:
    """Return the IoU of each class (K,) over all images; NaN for missing classes."""
    sums = [np.asarray(columns[name]).sum(0, dtype=float) for name in ("right", "predicted", "true")]
    with np.errstate(divide="ignore", invalid="ignore"):
        return ious(np.concatenate(sums)[None])[0]


def boundary_curve(columns: Mapping[str, Any]) -> np.ndarray:
    """Return the boundary mIoU of each radius in `WIDTHS`, (4,)."""
    sums = [np.asarray(columns[f"boundary_{name}"]).sum(0, dtype=float) for name in ("right", "predicted", "true")]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.nanmean(ious(np.concatenate(sums, axis=1)), axis=1))
