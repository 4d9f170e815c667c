"""From an image to what the model sees: the fixed view of evaluation, the random views of training. All timm's pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from PIL import Image
from timm.data import create_transform
from timm.data.transforms import MaybeToTensor
from torch import Tensor
from torchvision.transforms import Compose, Normalize, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip

from attngraft.tasks.images.config import AugmentConfig
from attngraft.tasks.images.inputs import HostInput, pixels

View = Callable[[Image.Image], Tensor]  #: (C, H, W): bytes, still to be normalized, or float32 ready for the model


@dataclass(frozen=True, kw_only=True)
class ViewPlan:
    """The choices that depend on the data: what `auto` and null fields of the configuration came to."""

    crop: Literal["resized", "pad", "center"]
    padding: int  #: pixels on each side; 0 unless `crop` is `pad`
    hflip: float
    vflip: float
    eval_crop_pct: float  #: 1 where images are no larger than the input: no pixel of a small image is cut away

    @classmethod
    def decide(cls, config: AugmentConfig, host: HostInput, *, image_size: tuple[int, int], mirrored: bool) -> ViewPlan:
        """For images of `image_size` (width, height), whose mirror images are of the same class or not."""
        small = host.holds(image_size)
        crop = config.crop if config.crop != "auto" else ("pad" if small else "resized")
        padding = min(host.height, host.width) // 8 if config.padding is None else config.padding
        hflip = (0.5 if mirrored else 0.0) if config.hflip is None else config.hflip
        return cls(
            crop=crop,
            padding=padding if crop == "pad" else 0,
            hflip=hflip,
            vflip=config.vflip,
            eval_crop_pct=1.0 if small else host.crop_pct,
        )


def only_moves(config: AugmentConfig, plan: ViewPlan) -> bool:
    """Whether training views are shifts and flips of a fixed view, so that bytes can be moved instead of images drawn."""
    changes = (config.auto_augment, config.color_jitter, config.grayscale, config.blur, config.erasing)
    return plan.crop != "resized" and not any(changes)


def fixed_view(host: HostInput, *, crop_pct: float, interpolation: str | None = None) -> Compose:
    """Resize and center crop to the host's input; gives bytes (C, H, W)."""
    return create_transform(
        input_size=(host.channels, host.height, host.width),
        is_training=False,
        interpolation=interpolation or host.interpolation,
        crop_pct=crop_pct,
        crop_mode=host.crop_mode,
        normalize=False,
    )


def random_view(config: AugmentConfig, plan: ViewPlan, host: HostInput) -> Compose:
    """The training view; draws from the global generators of python, numpy and torch.

    Gives bytes; where parts are erased, which works on what the model sees, normalized float32.
    """
    moves, changes, finish = create_transform(
        input_size=(host.channels, host.height, host.width),
        is_training=True,
        scale=config.scale,
        ratio=config.ratio,
        hflip=plan.hflip,
        vflip=plan.vflip,
        color_jitter=config.color_jitter,
        color_jitter_prob=config.color_jitter_prob,
        grayscale_prob=config.grayscale,
        gaussian_blur_prob=config.blur,
        auto_augment=config.auto_augment,
        interpolation=config.interpolation or host.interpolation,
        mean=host.mean,
        std=host.std,
        re_prob=config.erasing,
        re_mode=config.erasing_mode,
        re_count=config.erasing_count,
        separate=True,
    )
    if plan.crop != "resized":
        moves = _shifts(config, plan, host)
    to_tensor, normalize, *erase = finish.transforms
    if not (isinstance(to_tensor, MaybeToTensor) and isinstance(normalize, Normalize)):
        raise RuntimeError(f"timm's training transforms end otherwise than expected: {finish}")
    finish = [pixels, host.normalize, *erase] if erase else [pixels]
    return Compose([*moves.transforms, *changes.transforms, *finish])


def _shifts(config: AugmentConfig, plan: ViewPlan, host: HostInput) -> Compose:
    """The fixed view of a whole image, moved by up to `padding` pixels and flipped."""
    steps = fixed_view(host, crop_pct=1.0, interpolation=config.interpolation).transforms[
        :-1
    ]  # the last makes a tensor
    if plan.padding:
        steps.append(RandomCrop((host.height, host.width), padding=plan.padding))
    if plan.hflip:
        steps.append(RandomHorizontalFlip(plan.hflip))
    if plan.vflip:
        steps.append(RandomVerticalFlip(plan.vflip))
    return Compose(steps)
