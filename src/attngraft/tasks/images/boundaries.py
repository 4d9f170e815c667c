"""Pixels at the boundaries of label maps, and scores on them alone (BiSA, Table 2)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from attngraft.errors import UsageError

IGNORED = 255  #: the label that data sets of scenes leave out


def boundary(labels: Tensor, *, radius: int = 2, ignore: int = IGNORED) -> Tensor:
    """Which pixels of label maps (B, H, W) are boundary: some pixel in the square of `radius` around has another label.

    Pixels labelled `ignore` are no boundary, and make none. What the paper takes for boundaries it does not say: ours are
    from the labels; say the radius beside every number.

    Raises:
        UsageError: not (B, H, W), or a negative radius.
    """
    if labels.ndim != 3 or radius < 0:
        raise UsageError(f"labels of {tuple(labels.shape)} with radius {radius}: give (B, H, W) and 0 or more pixels")
    counted = labels != ignore
    # In float64 labels are exact; ignored pixels are made larger or smaller than all, so that they are never chosen.
    values = labels.double()
    beyond = float(values.abs().max()) + 1 if labels.numel() else 1.0
    largest = _largest_around(values.masked_fill(~counted, -beyond), radius)
    smallest = -_largest_around((-values).masked_fill(~counted, -beyond), radius)
    return counted & (largest > smallest)


def boundary_only(labels: Tensor, *, radius: int = 2, ignore: int = IGNORED) -> Tensor:
    """The label maps with `ignore` away from boundaries, so that any score over them is a score of boundaries."""
    return labels.masked_fill(~boundary(labels, radius=radius, ignore=ignore), ignore)


def _largest_around(values: Tensor, radius: int) -> Tensor:
    side = 2 * radius + 1
    return F.max_pool2d(values.unsqueeze(1), side, stride=1, padding=radius).squeeze(1)
