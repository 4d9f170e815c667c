"""Mixup and CutMix of images with several labels: labels are mixed as images are."""

from __future__ import annotations

import torch
from torch import Tensor

from attngraft.tasks.classification.mixing import Mixing
from attngraft.tasks.images.config import AugmentConfig


class LabelMixing:
    """`Mixing` that learns each image's share of each other one, and mixes rows of labels (B, classes) by it."""

    def __init__(self, config: AugmentConfig, *, seed: int) -> None:
        self.config, self.seed = config, seed

    def __call__(self, images: Tensor, target: Tensor, *, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        """Mixed images (B, C, H, W) and labels (B, classes) between 0 and 1; unchanged from `mix_off_epoch` on."""
        size = len(images)
        mixing = Mixing(self.config, classes=size, smoothing=0.0, seed=self.seed)
        own = torch.arange(size, device=target.device)  # every image a class of its own: what comes back are shares
        mixed, shares = mixing(images, own, epoch=epoch, step=step)
        return mixed, target if shares.ndim == 1 else shares @ target.to(shares.dtype)
