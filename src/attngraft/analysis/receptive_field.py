"""Effective receptive fields: which pixels move what a model says of one place (Luo et al. 2016)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attngraft.errors import UsageError


def receptive_field(
    features: Callable[[Tensor], Tensor], images: Tensor, *, place: tuple[int, int] | None = None
) -> Tensor:
    """How much each pixel moves the features at one place of the map: (H, W), largest 1.

    Per image, the sum over channels of the rectified features at `place`, differentiated by the pixels; its negative part
    counts as 0, it is summed over color channels and averaged over images (Ding et al. 2022, "Scaling up your kernels to
    31x31", Appendix; with ReLU where features are signed, so that channels do not cancel).

        def features(images):
            with attngraft.record(model, "mlp.end", detach=False) as recording:
                model(images)
            return recording.on_map("blocks.11.mlp", "mlp.end")

    Args:
        features: from images (B, channels, H, W) to a map (B, rows, columns, C), with gradients.
        images: (B, channels, H, W).
        place: (row, column) on that map; its middle by default.

    Raises:
        UsageError: the features are no map, have no gradient, or no such place.
    """
    field = pixel_gradient(features, images, place=place)
    return field / field.max().clamp_min(torch.finfo(field.dtype).tiny)


def pixel_gradient(
    features: Callable[[Tensor], Tensor], images: Tensor, *, place: tuple[int, int] | None = None
) -> Tensor:
    """What `receptive_field` is before it is scaled, (H, W): means over several batches are taken of this.

    Raises:
        UsageError: as `receptive_field`.
    """
    with torch.enable_grad():
        pixels = images.detach().clone().requires_grad_()
        found = features(pixels)
        if found.ndim != 4 or len(found) != len(images):
            raise UsageError(
                f"features of {tuple(found.shape)} are no map (B, rows, columns, C) of {len(images)} images"
            )
        row, column = place or (found.shape[1] // 2, found.shape[2] // 2)
        if not (0 <= row < found.shape[1] and 0 <= column < found.shape[2]):
            raise UsageError(f"the map is {found.shape[1]} x {found.shape[2]}; it has no place ({row}, {column})")
        if not found.requires_grad:
            raise UsageError("the features have no gradient: record with detach=False, and not under torch.no_grad()")
        (moved,) = torch.autograd.grad(found[:, row, column].relu().sum(), pixels)
    return moved.clamp_min(0).sum(1).mean(0)


def area_holding(field: Tensor, share: float) -> float:
    """Part of the field's area that the smallest centred rectangle has which holds `share` of it.

    Its sides grow by a pixel at both ends, the shorter one in proportion. Ding et al. (2022) report it for shares of 20%,
    30%, 50% and 99%: large where far pixels count as much as near ones.

    Raises:
        UsageError: the field is 0 everywhere, or the share is not between 0 and 1.
    """
    if not 0 < share <= 1:
        raise UsageError(f"share={share}: give a number between 0 and 1")
    field = field.double()
    height, width = field.shape
    total = float(field.sum())
    if total <= 0:
        raise UsageError("the field is 0 everywhere: no pixel moves these features")
    longer = max(height, width)
    for reach in range(longer):
        rows, columns = (_around_middle(size, reach * size // longer) for size in (height, width))
        inside = field[rows, columns]
        if float(inside.sum()) >= share * total * (1 - 1e-12):  # sums of the same numbers may round otherwise
            return inside.numel() / field.numel()
    return 1.0


def _around_middle(size: int, reach: int) -> slice:
    return slice(max(0, size // 2 - reach), size // 2 + reach + 1)
