"""What the class token and every patch are to say: label maps, cut out as the view was."""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.ops import roi_align


@torch.no_grad()
def map_targets(maps: Tensor, shown: Tensor, *, grid: tuple[int, int], classes: int) -> Tensor:
    """Distributions (B, classes, 1 + N): of the whole view, then of each of its patches, row by row.

    A map is a picture of scores, 0 where a class is not among the best; of each box it is averaged (RoIAlign, with as many
    samples as places lie in it), and the softmax is taken of that. Rows of a map are those of the image.

    Args:
        maps: (B, 2, K, Y, X), scores and classes.
        shown: (B, 6), see `views.Shown`.
        grid: rows and columns of patches.
    """
    scores, best = maps.float().unbind(1)
    batch, _, rows, columns = scores.shape
    pictures = scores.new_zeros(batch, classes, rows, columns).scatter_(1, best.long(), scores)
    edges = shown[:, :4] * shown.new_tensor([columns, rows, columns, rows])
    boxes = torch.cat([torch.arange(batch, device=edges.device).unsqueeze(1), edges], 1)
    patches = roi_align(pictures, boxes, grid, aligned=True)
    for flag, axis in ((shown[:, 4], 3), (shown[:, 5], 2)):
        patches = torch.where(flag.bool().view(-1, 1, 1, 1), patches.flip(axis), patches)
    whole = roi_align(pictures, boxes, (1, 1), aligned=True)
    return torch.cat([whole.flatten(2), patches.flatten(2)], 2).softmax(1)


def grid_of(patches: int, image: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of so many square patches of an image (height, width)."""
    rows = round((patches * image[0] / image[1]) ** 0.5)
    return rows, patches // rows
