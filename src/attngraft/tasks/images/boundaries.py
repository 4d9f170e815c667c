"""Boundary pixels of label maps, and label maps for scores on boundaries only (BiSA, Table 2)."""

import torch.nn.functional as F
from torch import Tensor

from attngraft.errors import UsageError

IGNORED = 255  #: label of pixels that scene segmentation data sets exclude


def boundary(labels: Tensor, *, radius: int = 2, ignore: int = IGNORED) -> Tensor:
    """Return a mask of the boundary pixels of label maps (B, H, W).

    A pixel is on a boundary if any pixel in the square of `radius` around it has another label. Pixels labeled `ignore` are
    not boundaries and create none. The paper does not define its boundaries; ours come from the labels, so report the
    radius with every number.

    Raises:
        UsageError: not (B, H, W), or a negative radius.
    """
    if labels.ndim != 3 or radius < 0:
        raise UsageError(f"labels of {tuple(labels.shape)} with radius {radius}: give (B, H, W) and 0 or more pixels")
    counted = labels != ignore
    # Labels are exact in float64. Ignored pixels lie beyond the range of labels, so that max pooling never selects them.
    values = labels.double()
    beyond = float(values.abs().max()) + 1 if labels.numel() else 1.0
    largest = _local_maximum(values.masked_fill(~counted, -beyond), radius)
    smallest = -_local_maximum((-values).masked_fill(~counted, -beyond), radius)
    return counted & (largest > smallest)


def boundary_only(labels: Tensor, *, radius: int = 2, ignore: int = IGNORED) -> Tensor:
    """Return the label maps with `ignore` outside of boundaries, so that any score over them is a boundary score."""
    return labels.masked_fill(~boundary(labels, radius=radius, ignore=ignore), ignore)


def _local_maximum(values: Tensor, radius: int) -> Tensor:
    return F.max_pool2d(values.unsqueeze(1), 2 * radius + 1, stride=1, padding=radius).squeeze(1)
