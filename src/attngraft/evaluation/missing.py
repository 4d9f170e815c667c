"""Images with missing parts: a hidden center, dropped patches."""

import torch
from torch import Tensor

from attngraft.errors import UsageError


def hide_center(images: Tensor, *, side: float = 0.5, fill: float | Tensor = 0.0) -> Tensor:
    """Fill the central rectangle of images (B, channels, H, W) (CB, Table 8: 112 of 224 pixels).

    Args:
        images: normalized for the mean color with `fill` 0, or pixels between 0 and 1 for black.
        side: of the rectangle, as a fraction of the image's side; rounded to whole pixels.
        fill: value of the rectangle: a number, or (channels,).

    Raises:
        UsageError: `side` is not between 0 and 1.
    """
    if not 0 <= side <= 1:
        raise UsageError(f"side={side}: give a fraction of the image's side, between 0 and 1")
    height, width = images.shape[-2:]
    high, wide = round(side * height), round(side * width)
    top, left = (height - high) // 2, (width - wide) // 2
    hidden = torch.zeros(height, width, dtype=torch.bool, device=images.device)
    hidden[top : top + high, left : left + wide] = True
    return torch.where(hidden, _color(fill, images), images)


def drop_patches(
    images: Tensor, scores: Tensor, *, share: float = 0.5, patch: int = 16, fill: float | Tensor = 0.0
) -> Tensor:
    """Drop the `share` of patches with the highest scores from images (B, channels, H, W) (Naseer et al. 2021).

    Scores are random numbers for random dropping, the class token's attention to each patch for salient dropping, and its
    negative for non-salient dropping.

    Args:
        images: H and W are multiples of `patch`.
        scores: (B, rows * columns) of patches, row by row. Of equal scores the first are dropped.
        share: of the patches, rounded to whole patches.
        patch: side in pixels.
        fill: value of dropped patches: a number, or (channels,).

    Raises:
        UsageError: image size not divisible by patch size, scores of another shape, or share not between 0 and 1.
    """
    rows, columns = (size // patch for size in images.shape[-2:])
    if (rows * patch, columns * patch) != tuple(images.shape[-2:]):
        raise UsageError(
            f"images of {images.shape[-2]} x {images.shape[-1]} are not divisible into patches of {patch} pixels"
        )
    if scores.shape != (len(images), rows * columns):
        raise UsageError(
            f"scores of {tuple(scores.shape)} do not match {rows} x {columns} patches of {len(images)} images"
        )
    if not 0 <= share <= 1:
        raise UsageError(f"share={share}: give a number between 0 and 1")
    gone = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, : round(share * rows * columns)]
    dropped = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, gone, True).view(-1, 1, rows, columns)
    hidden = dropped.repeat_interleave(patch, 2).repeat_interleave(patch, 3)
    return torch.where(hidden, _color(fill, images), images)


def _color(fill: float | Tensor, images: Tensor) -> Tensor:
    return torch.as_tensor(fill, dtype=images.dtype, device=images.device).reshape(-1, 1, 1)
