"""Images with parts missing: the center hidden, patches dropped."""

from __future__ import annotations

import torch
from torch import Tensor

from attngraft.errors import UsageError


def hide_center(images: Tensor, *, side: float = 0.5, fill: float | Tensor = 0.0) -> Tensor:
    """Images (B, channels, H, W) whose central rectangle is `fill` (CB, Table 8: 112 of 224 pixels).

    Args:
        images: normalized ones, if the rectangle is to have the mean color; pixels between 0 and 1 for black.
        side: of the rectangle, as a part of the image's; rounded to whole pixels.
        fill: what stands there: a number, or (channels,).

    Raises:
        UsageError: `side` is not between 0 and 1.
    """
    if not 0 <= side <= 1:
        raise UsageError(f"side={side}: give a part of the image's, between 0 and 1")
    height, width = images.shape[-2:]
    high, wide = round(side * height), round(side * width)
    top, left = (height - high) // 2, (width - wide) // 2
    hidden = torch.zeros(height, width, dtype=torch.bool, device=images.device)
    hidden[top : top + high, left : left + wide] = True
    return torch.where(hidden, _color(fill, images), images)


def drop_patches(
    images: Tensor, scores: Tensor, *, share: float = 0.5, patch: int = 16, fill: float | Tensor = 0.0
) -> Tensor:
    """Images (B, channels, H, W) without the `share` of their patches that score highest (Naseer et al. 2021).

    Which patches are dropped is the scores' affair: random numbers for random dropping, how much a class token looks at each
    patch for salient dropping, its negative for dropping what is not salient.

    Args:
        images: H and W are multiples of `patch`.
        scores: (B, rows * columns) of patches, row by row. Among equal ones the first go.
        share: of the patches, rounded to whole ones.
        patch: side in pixels.
        fill: what stands there: a number, or (channels,).

    Raises:
        UsageError: patches do not divide the images, scores are not theirs, or the share is not between 0 and 1.
    """
    rows, columns = (size // patch for size in images.shape[-2:])
    if (rows * patch, columns * patch) != tuple(images.shape[-2:]):
        raise UsageError(f"patches of {patch} pixels do not divide images of {images.shape[-2]} x {images.shape[-1]}")
    if scores.shape != (len(images), rows * columns):
        raise UsageError(
            f"scores of {tuple(scores.shape)} are not one for each of {rows} x {columns} patches of {len(images)} images"
        )
    if not 0 <= share <= 1:
        raise UsageError(f"share={share}: give a number between 0 and 1")
    gone = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, : round(share * rows * columns)]
    dropped = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, gone, True).view(-1, 1, rows, columns)
    hidden = dropped.repeat_interleave(patch, 2).repeat_interleave(patch, 3)
    return torch.where(hidden, _color(fill, images), images)


def _color(fill: float | Tensor, images: Tensor) -> Tensor:
    return torch.as_tensor(fill, dtype=images.dtype, device=images.device).reshape(-1, 1, 1)
