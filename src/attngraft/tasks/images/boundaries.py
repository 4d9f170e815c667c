"""Boundary pixels of label maps, and label maps that restrict scores to boundaries (BiSA, Table 2)."""

import torch.nn.functional as F
from torch import Tensor

from attngraft.errors import UsageError

IGNORED = 255  #: label of pixels that are excluded from evaluation in scene segmentation data sets


def boundary(labels: Tensor, *, radius: int = 2, ignore: int = IGNORED) -> Tensor:
    """Return a mask of the boundary pixels of label maps (B, H, W).

    A pixel is on a boundary if any pixel at most `radius` rows and columns away has a different label. Pixels labeled
    `ignore` are never boundary pixels and do not make their neighbors boundary pixels. The paper does not define its
    boundaries; ours are derived from the labels, so report the radius with every number.

    Raises:
        UsageError: `labels` is not (B, H, W), or the radius is negative.
    """
    if labels.ndim != 3 or radius < 0:
        raise UsageError(
            f"labels must be (B, H, W) and radius at least 0; got {tuple(labels.shape)} and radius={radius}"
        )
    counted = labels != ignore
    # Labels are exact in float64. Ignored pixels get values outside the range of labels, so max pooling never selects them.
    values = labels.double()
    beyond = float(values.abs().max()) + 1 if labels.numel() else 1.0
    largest = _local_maximum(values.masked_fill(~counted, -beyond), radius)
    smallest = -_local_maximum((-values).masked_fill(~counted, -beyond), radius)
    return counted & (largest > smallest)


def boundary_only(labels: Tensor, *, radius: int = 2, ignore: int = IGNORED) -> Tensor:
    """Return the label maps with all non-boundary pixels set to `ignore`, so scores cover only boundaries."""
    return labels.masked_fill(~boundary(labels, radius=radius, ignore=ignore), ignore)


def _local_maximum(values: Tensor, radius: int) -> Tensor:
    return F.max_pool2d(values.unsqueeze(1), 2 * radius + 1, stride=1, padding=radius).squeeze(1)
