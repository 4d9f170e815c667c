"""Loss and targets of token labeling: a label per patch in addition to the image label.

The model returns logits for the class token and for each patch. MixToken exchanges a box of patches between image i and
image B - 1 - i of a batch, and restores the order of the patches' logits before the loss.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.ops import roi_align

from attngraft.errors import UsageError

#: weight of the map's label in the mean with the image's label: if both have the same class, and if not
AGREEING, DISAGREEING = 0.5, 0.9


@dataclass(frozen=True)
class TokenLabelLoss:
    """Token labeling loss.

        class_weight * CE(class logits, mixed target) + dense_weight * mean over patches of CE(patch logits, patch target)

    Args:
        dense_weight, class_weight: weights of the two terms.
        with_ground_truth: whether the class target is a weighted mean of the image's label and the map's label, as in the
            authors' fine-tuning, instead of the map's label alone.
    """

    dense_weight: float = 0.5
    class_weight: float = 1.0
    with_ground_truth: bool = False

    def __call__(self, logits: Tensor, patches: Tensor, target: Tensor, *, box: tuple[int, int, int, int]) -> Tensor:
        """Return the loss, a scalar.

        Args:
            logits: class token logits, (B, classes).
            patches: patch logits, (B, N, classes).
            target: (B, classes), used for the class token and all patches; or (B, classes, 2 + N): the image's label, the
                map's label of the whole crop, and one label per patch, row by row.
            box: top, left, bottom, right of the patches that MixToken exchanged (exclusive ends); all 0 for none.

        Raises:
            UsageError: the targets are for a different number of patches.
        """
        count = patches.shape[1]
        if target.ndim == 3 and target.shape[2] != 2 + count:
            raise UsageError(f"got targets for {target.shape[2] - 2} patches, but the model has {count}")
        class_target = self._class_target(target)
        top, left, bottom, right = box
        kept = 1 - (bottom - top) * (right - left) / count
        mixed = kept * class_target + (1 - kept) * class_target.flip(0)
        of_patches = target[..., 2:].transpose(1, 2) if target.ndim == 3 else target.unsqueeze(1).expand_as(patches)
        return self.class_weight * _cross_entropy(logits, mixed) + self.dense_weight * _cross_entropy(
            patches, of_patches
        )

    def _class_target(self, target: Tensor) -> Tensor:
        if target.ndim == 2:
            return target
        truth, label = target[..., 0], target[..., 1]
        if not self.with_ground_truth:
            return label
        agree = truth.argmax(1, keepdim=True) == label.argmax(1, keepdim=True)
        share = torch.where(agree, AGREEING, DISAGREEING).to(label.dtype)
        return share * label + (1 - share) * truth


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross entropy of logits with targets that are distributions over the last axis."""
    return -(target * logits.log_softmax(-1)).sum(-1).mean()


@torch.no_grad()
def map_targets(maps: Tensor, crops: Tensor, *, grid: tuple[int, int], classes: int) -> Tensor:
    """Return class distributions (B, classes, 1 + N) of the whole crop and of each of its patches, row by row.

    A map is an image of class scores, which are 0 for classes that are not among the best. Scores are averaged over each box
    (RoIAlign, with one sample per map cell in the box) before the softmax. Rows of a map correspond to rows of the image.

    Args:
        maps: scores and classes, (B, 2, K, Y, X).
        crops: crops of the images, (B, 6), see `maps.Crop`.
        grid: number of rows and columns of patches.
    """
    scores, best = maps.float().unbind(1)
    batch, _, rows, columns = scores.shape
    images = scores.new_zeros(batch, classes, rows, columns).scatter_(1, best.long(), scores)
    edges = crops[:, :4] * crops.new_tensor([columns, rows, columns, rows])
    boxes = torch.cat([torch.arange(batch, device=edges.device).unsqueeze(1), edges], 1)
    patches = roi_align(images, boxes, grid, aligned=True)
    for flag, axis in ((crops[:, 4], 3), (crops[:, 5], 2)):
        patches = torch.where(flag.bool().view(-1, 1, 1, 1), patches.flip(axis), patches)
    whole = roi_align(images, boxes, (1, 1), aligned=True)
    return torch.cat([whole.flatten(2), patches.flatten(2)], 2).softmax(1)


def grid_of(patches: int, image: tuple[int, int]) -> tuple[int, int]:
    """Return the number of rows and columns of `patches` square patches that cover an image (height, width)."""
    rows = round((patches * image[0] / image[1]) ** 0.5)
    return rows, patches // rows
