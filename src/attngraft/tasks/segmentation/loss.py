"""The loss of segmentation, in blocks of rows: the logits of all pixels and classes never exist at the same time."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.tasks.images.boundaries import IGNORED


class _RowBlockLoss(torch.autograd.Function):
    """Sum of cross-entropies; the gradient with respect to the small logits is computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, label: Tensor, weights: Tensor | None, rows: int) -> Tensor:
        small = logits.detach().float() if logits.dtype in (torch.float16, torch.bfloat16) else logits.detach()
        total, gradient = small.new_zeros(()), torch.zeros_like(small) if logits.requires_grad else None
        with torch.autocast(small.device.type, enabled=False):
            for start in range(0, label.shape[1], rows):
                block = label[:, start : start + rows]
                first, last = _source_rows(start, start + block.shape[1], label.shape[1], small.shape[2])
                part = small[:, :, first:last]
                with torch.enable_grad():
                    part = part.requires_grad_(gradient is not None)
                    large = _upsampled(part, first, start, block.shape[1:], (small.shape[2:], label.shape[1:]))
                    loss = F.cross_entropy(large, block.long(), weights, ignore_index=IGNORED, reduction="sum")
                total += loss.detach()
                if gradient is not None:
                    (found,) = torch.autograd.grad(loss, part)
                    gradient[:, :, first:last] += found
        ctx.save_for_backward(gradient)
        ctx.dtype = logits.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return (None if gradient is None else (gradient * upstream[0]).to(ctx.dtype)), None, None, None


def row_block_loss(logits: Tensor, label: Tensor, *, weights: Tensor | None = None, rows: int = 8) -> Tensor:
    """Return the mean cross-entropy of the labeled pixels of upsampled logits.

        loss = sum_i w_(y_i) CE(up(logits)_i, y_i) / sum_i w_(y_i),    up: bilinear, without aligned corners

    It equals `F.cross_entropy` of `F.interpolate(logits, size)`, but upsamples only `rows` rows at a time and accumulates
    the gradient with respect to `logits` (no second derivatives). Without labeled pixels, it is 0.

    Args:
        logits: (B, K, h, w).
        label: (B, H, W), with `IGNORED` pixels.
        weights: (K,), weight of each class.
        rows: rows of the label map at a time.
    """
    found: Tensor = _RowBlockLoss.apply(logits, label, weights, rows)
    counts = torch.bincount(label.reshape(-1).long(), minlength=256)[: logits.shape[1]].to(found.dtype)
    total = counts.sum() if weights is None else (counts * weights).sum()
    return found / total.clamp(min=torch.finfo(found.dtype).tiny)


def _source_rows(start: int, stop: int, height: int, small: int) -> tuple[int, int]:
    """Return the range of source rows required for the rows `start` to `stop` of an upsampled map."""
    scale = small / height
    first = int(max(0.0, (start + 0.5) * scale - 0.5))
    last = int(max(0.0, (stop - 0.5) * scale - 0.5)) + 2
    return max(0, min(first, small - 1) - 1), min(small, last + 1)


def _upsampled(part: Tensor, first: int, start: int, block: Any, sizes: Any) -> Tensor:
    """Upsample a map bilinearly to `block` (rows, columns), beginning at row `start` of the whole result.

    Rows are interpolated by a matrix product with the coordinates of the whole map, columns by `interpolate`.

    Args:
        part: rows of the map, beginning at its row `first`.
        sizes: heights and widths of the whole map and of the whole result.
    """
    (small_height, _), (height, width) = sizes
    rows = torch.arange(start, start + block[0], device=part.device, dtype=part.dtype)
    position = ((rows + 0.5) * (small_height / height) - 0.5).clamp(min=0, max=small_height - 1)
    own = torch.arange(first, first + part.shape[2], device=part.device, dtype=part.dtype)
    between = (1 - (position[:, None] - own).abs()).clamp(min=0) @ part  # a product has a faster gradient than indices
    return F.interpolate(between, (block[0], width), mode="bilinear", align_corners=False)
