"""Occlusion of images: a hidden center or dropped patches."""

import torch
from torch import Tensor

from attngraft.errors import UsageError


def hide_center(images: Tensor, *, side: float = 0.5, fill: float | Tensor = 0.0) -> Tensor:
    """Fill the central rectangle of images (B, channels, H, W) (CB, Table 8: 112 of 224 pixels).

    Args:
        images: normalized images, where a `fill` of 0 is the mean color, or pixels from 0 to 1, where it is black.
        side: fraction of the image's height and width that the rectangle covers, rounded to whole pixels.
        fill: value of the rectangle, a number or a tensor (channels,).

    Raises:
        UsageError: `side` is not between 0 and 1.
    """
    if not 0 <= side <= 1:
        raise UsageError(f"side must be between 0 and 1 (a fraction of the image's side), got {side}")
    height, width = images.shape[-2:]
    high, wide = round(side * height), round(side * width)
    top, left = (height - high) // 2, (width - wide) // 2
    hidden = torch.zeros(height, width, dtype=torch.bool, device=images.device)
    hidden[top : top + high, left : left + wide] = True
    return torch.where(hidden, _color(fill, images), images)


def drop_patches(
    images: Tensor, scores: Tensor, *, share: float = 0.5, patch: int = 16, fill: float | Tensor = 0.0
) -> Tensor:
    """Drop the patches with the highest scores from images (B, channels, H, W) (Naseer et al. 2021).

    Use random scores for random dropping, the class token's attention to each patch for salient dropping, and the negative
    attention for non-salient dropping.

    Args:
        images: images whose H and W are multiples of `patch`.
        scores: scores of the patches, row by row, (B, rows * columns). Among equal scores, the first are dropped.
        share: fraction of patches to drop, rounded to whole patches.
        patch: side of a patch in pixels.
        fill: value of dropped patches, a number or a tensor (channels,).

    Raises:
        UsageError: the image size is not divisible by the patch size, `scores` has a wrong shape, or `share` is not between
            0 and 1.
    """
    rows, columns = (size // patch for size in images.shape[-2:])
    if (rows * patch, columns * patch) != tuple(images.shape[-2:]):
        raise UsageError(
            f"image size {images.shape[-2]} x {images.shape[-1]} is not divisible by the patch size {patch}"
        )
    if scores.shape != (len(images), rows * columns):
        raise UsageError(
            f"scores must be ({len(images)}, {rows * columns}) for {rows} x {columns} patches of {len(images)} images, got "
            f"{tuple(scores.shape)}"
        )
    if not 0 <= share <= 1:
        raise UsageError(f"share must be between 0 and 1, got {share}")
    gone = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, : round(share * rows * columns)]
    dropped = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, gone, True).view(-1, 1, rows, columns)
    hidden = dropped.repeat_interleave(patch, 2).repeat_interleave(patch, 3)
    return torch.where(hidden, _color(fill, images), images)


def _color(fill: float | Tensor, images: Tensor) -> Tensor:
    return torch.as_tensor(fill, dtype=images.dtype, device=images.device).reshape(-1, 1, 1)
