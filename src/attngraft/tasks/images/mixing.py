"""Mixup and CutMix (Zhang et al. 2018, Yun et al. 2019) through timm, as functions of (seed, epoch, step)."""

import torch
from timm.data.mixup import Mixup, mixup_target
from torch import Tensor

from attngraft.tasks.images.config import AugmentConfig
from attngraft.tasks.seeding import seeded


class Mixing:
    """Mixup or CutMix of a batch with the same images in reverse order.

    Each process mixes images of its own batch; all processes draw the same random numbers.
    """

    def __init__(self, config: AugmentConfig, *, classes: int, smoothing: float, seed: int) -> None:
        self.seed, self.classes, self.smoothing, self.off_epoch = seed, classes, smoothing, config.mix_off_epoch
        self.mixup = Mixup(
            mixup_alpha=config.mixup,
            cutmix_alpha=config.cutmix,
            cutmix_minmax=config.cutmix_minmax,
            prob=config.mix_prob,
            switch_prob=config.mix_switch_prob,
            mode=config.mix_mode,
            label_smoothing=smoothing,
            num_classes=classes,
        )

    def __call__(self, images: Tensor, target: Tensor, *, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        """Return mixed images (B, C, H, W) and smoothed soft targets (B, classes).

        From `mix_off_epoch` on, the inputs are returned unchanged. timm requires an even batch, so the last image of an odd
        batch is not mixed.
        """
        if self.off_epoch is not None and epoch >= self.off_epoch:
            return images, target
        images, even = images.clone(), len(images) - len(images) % 2  # timm mixes in place
        soft = mixup_target(target, self.classes, smoothing=self.smoothing)
        if even:
            with seeded("mix", self.seed, epoch, step):
                _, soft[:even] = self.mixup(images[:even], target[:even])
        return images, torch.as_tensor(soft)


class MultiLabelMixing:
    """Mix images like `Mixing`, and label rows (B, classes) with the same ratios."""

    def __init__(self, config: AugmentConfig, *, seed: int) -> None:
        self.config, self.seed = config, seed

    def __call__(self, images: Tensor, target: Tensor, *, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        """Return mixed images (B, C, H, W) and labels (B, classes) from 0 to 1.

        From `mix_off_epoch` on, the inputs are returned unchanged.
        """
        size = len(images)
        mixing = Mixing(self.config, classes=size, smoothing=0.0, seed=self.seed)
        # with one class per image, soft targets are the mixing ratios
        identity = torch.arange(size, device=target.device)
        mixed, ratios = mixing(images, identity, epoch=epoch, step=step)
        return mixed, target if ratios.ndim == 1 else ratios @ target.to(ratios.dtype)
