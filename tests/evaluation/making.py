"""Images to corrupt."""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional


def smooth_picture(height: int = 48, width: int = 64, *, seed: int = 0) -> Tensor:
    """(3, H, W), in whole levels of 255, so that files hold it as it is."""
    small = torch.rand(3, 6, 8, generator=torch.Generator().manual_seed(seed))
    smooth = functional.resize(small, [height, width], functional.InterpolationMode.BICUBIC, antialias=True)
    return (smooth.clamp(0, 1) * 255).round() / 255
