"""Intersection over union of parts, in three conventions (`PartMetricsConfig`), for each shape.

IoU_p = |predicted p and true p| / |predicted p or true p|,    shape: mean over its parts
instance mIoU = mean over shapes,    class mIoU = mean over categories of the mean over their shapes
"""

from collections.abc import Sequence

import numpy as np

from attngraft.results.column_rules import COUNT, SHARE, ColumnRules
from attngraft.results.measured import ClosedForm, MeanScore, Measured, Statistic
from attngraft.results.records import RecordTable
from attngraft.tasks.segmentation.metrics import accuracies

CONVENTIONS = ("present", "category", "all")
RULES = ColumnRules(
    ranges={
        **dict.fromkeys(("category", "true"), COUNT),
        **dict.fromkeys(("correct", *(f"iou_{convention}" for convention in CONVENTIONS)), SHARE),
    },
    truth=["category"],
)


def part_statistics(
    probabilities: np.ndarray, true: np.ndarray, own: Sequence[int], *, parts: int
) -> dict[str, np.ndarray]:
    """Return the IoU of one shape in each convention, the share of correct points by the argmax over all parts, and `true`.

    Args:
        probabilities: (J, K) of the judged points; any increasing function of them, such as logits, gives the same.
        true: (J,), parts.
        own: the parts of the shape's category.
        parts: number of the parts of all categories; `true` (parts,) has the number of points of each.
    """
    among_all, columns = probabilities.argmax(1), np.asarray(own)
    among_own = columns[probabilities[:, columns].argmax(1)]
    found = _statistics(among_all, among_own, true, columns)
    return found | {"true": np.bincount(true, minlength=parts)}


def constant_statistics(counts: np.ndarray, own: Sequence[int], part: int) -> dict[str, np.ndarray]:
    """Return the statistics of one shape if `part` is predicted at all points; `counts` (parts,) are their true numbers."""
    true = np.repeat(np.arange(len(counts)), counts)
    predicted = np.full(len(true), part)
    return _statistics(predicted, predicted, true, np.asarray(own))


def _statistics(
    among_all: np.ndarray, among_own: np.ndarray, true: np.ndarray, own: np.ndarray
) -> dict[str, np.ndarray]:
    values = {
        "iou_present": _mean_iou(among_all, true, np.unique(true)),
        "iou_category": _mean_iou(among_own, true, own),
        "iou_all": _mean_iou(among_all, true, own),
        "correct": float((among_all == true).mean()),
    }
    return {name: np.array(value) for name, value in values.items()}


def _mean_iou(predicted: np.ndarray, true: np.ndarray, parts: np.ndarray) -> float:
    ious = []
    for part in parts:
        union = ((predicted == part) | (true == part)).sum()
        ious.append(((predicted == part) & (true == part)).sum() / union if union else 1.0)
    return float(np.mean(ious))


def measure(table: RecordTable) -> Measured:
    """Return the instance and class mIoU in each convention, and `accuracy`, the mean over shapes of the correct share.

    Categories without shapes do not count.
    """
    categories, index = np.unique(table.array("category"), return_inverse=True)
    of_category = np.eye(len(categories))[index]
    statistics: dict[str, Statistic] = {}
    for convention in CONVENTIONS:
        ious = table.array(f"iou_{convention}")
        statistics[f"instance_miou_{convention}"] = MeanScore(ious)
        statistics[f"class_miou_{convention}"] = ClosedForm(
            np.concatenate([of_category * ious[:, None], of_category], axis=1), accuracies
        )
    statistics["accuracy"] = MeanScore(table.array("correct"))
    return Measured(values={name: each.point for name, each in statistics.items()}, statistics=statistics)


def category_means(category: np.ndarray, ious: np.ndarray, categories: int) -> np.ndarray:
    """Return the mean IoU of each category's shapes (categories,); NaN for categories without shapes."""
    sums, counts = (
        np.bincount(category, weights=ious, minlength=categories),
        np.bincount(category, minlength=categories),
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return accuracies(np.concatenate([sums, counts])[None])[0]
