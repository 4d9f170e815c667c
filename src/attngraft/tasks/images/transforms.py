"""Image transforms for training and evaluation, built from timm's transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import IO, Literal

import numpy as np
import torch
from PIL import Image
from timm.data import create_transform
from timm.data.transforms import MaybeToTensor
from torch import Tensor
from torchvision.transforms import Compose, Normalize, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip

from attngraft.errors import ConfigError, ExportError
from attngraft.suggest import one_line
from attngraft.tasks.images.config import AugmentConfig
from attngraft.tasks.images.inputs import HostInput, image_to_tensor
from attngraft.tasks.images.sources.decoding import decode, in_mode
from attngraft.tasks.task import Serving

Transform = Callable[[Image.Image], Tensor]  #: returns (C, H, W): uint8, or float32 if already normalized


@dataclass(frozen=True, kw_only=True)
class TransformPlan:
    """Values for the `auto` and null fields of the configuration, chosen from the data."""

    crop: Literal["resized", "pad", "center"]
    padding: int  #: pixels on each side; 0 unless `crop` is `pad`
    hflip: float
    vflip: float
    eval_crop_pct: float  #: 1 for images no larger than the input, so that small images are not cropped

    @classmethod
    def decide(
        cls, config: AugmentConfig, host: HostInput, *, image_size: tuple[int, int], mirrored: bool
    ) -> TransformPlan:
        """Choose values for images of `image_size` (width, height); `mirrored`: flipping keeps the class.

        Raises:
            ConfigError: the shifts are larger than the host's input.
        """
        small = host.holds(image_size)
        crop = config.crop if config.crop != "auto" else ("pad" if small else "resized")
        side = min(host.height, host.width)
        padding = side // 8 if config.padding is None else config.padding
        if crop == "pad" and padding > side:
            raise ConfigError(f"task.augment.padding: shifts of {padding} pixels leave nothing of {side}; use fewer")
        hflip = (0.5 if mirrored else 0.0) if config.hflip is None else config.hflip
        return cls(
            crop=crop,
            padding=padding if crop == "pad" else 0,
            hflip=hflip,
            vflip=config.vflip,
            eval_crop_pct=1.0 if small else host.crop_pct,
        )


def only_shifts_and_flips(config: AugmentConfig, plan: TransformPlan) -> bool:
    """Return whether training only shifts and flips images of a fixed size, which can be done on cached bytes."""
    changes = (config.auto_augment, config.color_jitter, config.grayscale, config.blur, config.erasing)
    return plan.crop != "resized" and not any(changes)


def eval_transform(host: HostInput, *, crop_pct: float, interpolation: str | None = None) -> Compose:
    """Return a transform that resizes and center-crops to the host's input, as uint8 (C, H, W)."""
    return create_transform(
        input_size=(host.channels, host.height, host.width),
        is_training=False,
        interpolation=interpolation or host.interpolation,
        crop_pct=crop_pct,
        crop_mode=host.crop_mode,
        normalize=False,
    )


def train_transform(config: AugmentConfig, plan: TransformPlan, host: HostInput) -> Compose:
    """Return the training transform, which draws from the global generators of Python, NumPy and torch.

    Its output (C, H, W) is uint8, or normalized float32 with random erasing, which operates on normalized images.
    """
    geometry, changes, finish = create_transform(
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
        steps = eval_transform(host, crop_pct=1.0, interpolation=config.interpolation).transforms[:-1]  # not the tensor
        if plan.padding:
            steps.append(RandomCrop((host.height, host.width), padding=plan.padding))
        if plan.hflip:
            steps.append(RandomHorizontalFlip(plan.hflip))
        if plan.vflip:
            steps.append(RandomVerticalFlip(plan.vflip))
        geometry = Compose(steps)
    to_tensor, normalize, *erase = finish.transforms
    if not (isinstance(to_tensor, MaybeToTensor) and isinstance(normalize, Normalize)):
        raise RuntimeError(
            f"timm's training transforms end in an unexpected way ({finish}); install another version of timm"
        )
    finish = [image_to_tensor, host.normalize, *erase] if erase else [image_to_tensor]
    return Compose([*geometry.transforms, *changes.transforms, *finish])


class Preprocessor:
    """Evaluation preprocessing of image files for a model."""

    def __init__(self, host: HostInput) -> None:
        self.host, self._transform = host, eval_transform(host, crop_pct=host.crop_pct)

    @classmethod
    def from_serving(cls, serving: Serving) -> Preprocessor:
        """Build the preprocessor from the `input` section of a model's `Serving`.

        Raises:
            ExportError: the section is damaged.
        """
        try:
            return cls(HostInput.from_model({**serving.input, "input_size": serving.input["size"]}))
        except Exception as error:  # of any class, since the values may be of any type
            raise ExportError(
                f"attngraft.json: serving.input is not a valid preprocessing ({one_line(error)}); restore a good copy, or "
                "export the model again"
            ) from error

    def read(self, stream: IO[bytes], *, where: str) -> Tensor:
        """Decode an image file, convert it to the host's mode, resize and crop it; return uint8 (C, H, W).

        Raises:
            UnreadableImage: the file cannot be decoded; the message contains `where`.
        """
        return self.transform(decode(stream, where=where))

    def transform(self, image: Image.Image) -> Tensor:
        """Convert, resize and crop a decoded, upright image; return uint8 (C, H, W)."""
        pixels: Tensor = self._transform(in_mode(image, self.host.mode))
        return pixels

    def label_map(self, labels: np.ndarray) -> Tensor:
        """Return labels (H, W) resized (nearest neighbor) and cropped like the image."""
        transforms = eval_transform(self.host, crop_pct=self.host.crop_pct, interpolation="nearest").transforms
        image = Image.fromarray(labels.astype(np.int32))
        for transform in transforms[:-1]:  # the last transform converts to a tensor
            image = transform(image)
        return torch.from_numpy(np.array(image))

    def cropped(self, image: Image.Image, *, most: int) -> Image.Image:
        """Return the part of the image that the model sees, at the image's own resolution, in the host's mode.

        Both sides have at most `most` pixels, but at least as many as the model's input.
        """
        host = self.host
        scale = min(host.crop_pct * min(image.size) / min(host.height, host.width), most / max(host.height, host.width))
        if scale <= 1:
            pixels = self.transform(image)
        else:
            larger = replace(host, height=round(host.height * scale), width=round(host.width * scale))
            pixels = eval_transform(larger, crop_pct=host.crop_pct)(in_mode(image, host.mode))
        return Image.fromarray(pixels.movedim(0, -1).squeeze(-1).numpy())

    def batch(self, images: Sequence[Tensor]) -> Tensor:
        """Stack and normalize images (C, H, W) from `read` or `transform`; return (B, C, H, W) float32."""
        return self.host.normalize(torch.stack(list(images)))
