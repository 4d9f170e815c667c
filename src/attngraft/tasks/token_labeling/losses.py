"""The loss of token labeling: every patch has a label of its own, besides the image's.

A model trained so gives logits for the class token and for every patch; MixToken has exchanged a box of patches between the
images of a batch and their mirror image in it, and puts the patches' logits back before they come here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attngraft.errors import UsageError

#: share of the class token's label beside the truth where both name the same class, and where they do not
AGREEING, DISAGREEING = 0.5, 0.9


@dataclass(frozen=True)
class TokenLabelLoss:
    """class_weight * CE(class logits, mixed target) + dense_weight * mean over patches of CE(patch logits, patch target).

    Args:
        dense_weight, class_weight: factors of the two parts.
        with_ground_truth: the class target is a mean of the truth and of the class token's label, as fine-tuning takes it,
            instead of the latter alone.
    """

    dense_weight: float = 0.5
    class_weight: float = 1.0
    with_ground_truth: bool = False

    def __call__(self, logits: Tensor, patches: Tensor, target: Tensor, *, box: tuple[int, int, int, int]) -> Tensor:
        """A number.

        Args:
            logits: (B, classes). patches: (B, N, classes).
            target: (B, classes), for class token and patches alike; or (B, classes, 2 + N): the truth, the class token's
                label, one for each patch, row by row.
            box: first row and column of what MixToken exchanged, and those behind it, in patches; all 0 for nothing.

        Raises:
            UsageError: targets for another number of patches.
        """
        count = patches.shape[1]
        if target.ndim == 3 and target.shape[2] != 2 + count:
            raise UsageError(f"targets for {target.shape[2] - 2} patches do not fit the {count} of the model")
        of_class = self._of_class(target)
        top, left, bottom, right = box
        kept = 1 - (bottom - top) * (right - left) / count
        mixed = kept * of_class + (1 - kept) * of_class.flip(0)
        of_patches = target[..., 2:].transpose(1, 2) if target.ndim == 3 else target.unsqueeze(1).expand_as(patches)
        return self.class_weight * _cross_entropy(logits, mixed) + self.dense_weight * _cross_entropy(
            patches, of_patches
        )

    def _of_class(self, target: Tensor) -> Tensor:
        if target.ndim == 2:
            return target
        truth, label = target[..., 0], target[..., 1]
        if not self.with_ground_truth:
            return label
        agree = truth.argmax(1, keepdim=True) == label.argmax(1, keepdim=True)
        share = torch.where(agree, AGREEING, DISAGREEING).to(label.dtype)
        return share * label + (1 - share) * truth


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """The mean over all rows, of targets that are distributions over the last axis."""
    return -(target * logits.log_softmax(-1)).sum(-1).mean()
