"""Images to corrupt, and a model to attack."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.transforms.v2 import functional

from attngraft.tasks.images.suites.changes import AttackTarget

MEAN = (0.485, 0.456, 0.406)


def smooth_picture(height: int = 48, width: int = 64, *, seed: int = 0) -> Tensor:
    """(3, H, W), in whole levels of 255, so that files hold it as it is."""
    small = torch.rand(3, 6, 8, generator=torch.Generator().manual_seed(seed))
    smooth = functional.resize(small, [height, width], functional.InterpolationMode.BICUBIC, antialias=True)
    return (smooth.clamp(0, 1) * 255).round() / 255


def attack_target(model: nn.Module, labels: Tensor, indices: list[int]) -> AttackTarget:
    """A classifier, and a batch of the examples with these indices."""
    return AttackTarget(
        model=model,
        outputs=model,
        losses=lambda x: F.cross_entropy(model(x), labels, reduction="none"),
        indices=indices,
        color=MEAN,
    )
