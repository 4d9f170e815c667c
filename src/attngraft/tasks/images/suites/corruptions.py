"""Corruptions in five severities, with the settings of ImageNet-C.

Source: Hendrycks and Dietterich 2019, "Benchmarking neural network robustness to common corruptions and perturbations".

The settings are meant for images of about 224 pixels: a blur of 6 pixels is meaningless on images of 32. `apply` accepts any
level (CB's Table 12: Gaussian noise of 5/255 and 10/255, blurs of 1 and 2 pixels). Scores are close to those on ImageNet-C
but not equal, because its files were saved as JPEG, whereas here only some corruptions round values.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from scipy import ndimage
from torch import Tensor

from attngraft.errors import UsageError
from attngraft.image_files import open_image
from attngraft.suggest import did_you_mean

SEVERITIES = 5

#: function of image (channels, H, W) between 0 and 1, level and generator; returns the corrupted image before clamping
Change = Callable[[Tensor, float, torch.Generator], Tensor]


@dataclass(frozen=True, kw_only=True)
class Corruption:
    """A kind of corruption in five severities."""

    name: str
    levels: tuple[float, ...]  #: levels of the severities 1 to 5
    unit: str  #: unit of the levels
    random: bool  #: whether the corruption draws from the generator
    change: Change

    def __call__(self, image: Tensor, severity: int, generator: torch.Generator) -> Tensor:
        """Corrupt an image (channels, H, W) between 0 and 1.

        Seed the generator from a seed and the image's index, so that results depend neither on the order of images nor on
        the number of processes.

        Raises:
            UsageError: the severity does not exist.
        """
        if not 1 <= severity <= len(self.levels):
            raise UsageError(f"{self.name}: severity must be 1 to {len(self.levels)}, got {severity}")
        return self.apply(image, self.levels[severity - 1], generator)

    def apply(self, image: Tensor, level: float, generator: torch.Generator) -> Tensor:
        """Corrupt an image at any level, given in `unit`.

        The computation is in float32 on the CPU, and `generator` must be on the CPU.

        Raises:
            UsageError: the image is not a float tensor with values between 0 and 1.
        """
        if not image.is_floating_point() or image.ndim != 3:
            raise UsageError(f"image must be a float tensor (channels, H, W), got {image.dtype} {tuple(image.shape)}")
        low, high = image.aminmax()
        if not (low >= 0 and high <= 1):
            raise UsageError(
                f"pixels must be between 0 and 1, got {float(low):g} to {float(high):g}; use images before normalization"
            )
        return self.change(image.float().cpu(), level, generator).clamp(0, 1).to(image)


def corruption(name: str) -> Corruption:
    """Return the corruption with this name.

    Raises:
        UsageError: the name is unknown.
    """
    if name not in CORRUPTIONS:
        raise UsageError(
            f"unknown corruption {name!r}{did_you_mean(name, CORRUPTIONS)}; available: {', '.join(CORRUPTIONS)}"
        )
    return CORRUPTIONS[name]


def _gaussian_noise(image: Tensor, level: float, generator: torch.Generator) -> Tensor:
    return image + level * torch.randn(image.shape, generator=generator)


def _shot_noise(image: Tensor, level: float, generator: torch.Generator) -> Tensor:
    return torch.poisson(image * level, generator=generator) / level


def _impulse_noise(image: Tensor, level: float, generator: torch.Generator) -> Tensor:
    hit = torch.rand(image.shape, generator=generator) < level
    salt = torch.rand(image.shape, generator=generator) < 0.5
    return torch.where(hit, salt.to(image.dtype), image)


def _speckle_noise(image: Tensor, level: float, generator: torch.Generator) -> Tensor:
    return image + image * level * torch.randn(image.shape, generator=generator)


def _gaussian_blur(image: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """Blur with a kernel truncated at 4 sigma; the border is padded by replication."""
    return torch.from_numpy(ndimage.gaussian_filter(image.numpy(), level, mode="nearest", truncate=4.0, axes=(1, 2)))


def _brightness(image: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """Increase V of HSV without changing hue and saturation."""
    value = image.amax(0)
    raised = (value + level).clamp(max=1)
    return torch.where(value > 0, image * (raised / torch.where(value > 0, value, 1)), raised)


def _contrast(image: Tensor, level: float, generator: torch.Generator) -> Tensor:
    mean = image.mean((1, 2), keepdim=True)
    return (image - mean) * level + mean


def _pixelate(image: Tensor, level: float, generator: torch.Generator) -> Tensor:
    whole = _to_pil(image)
    small = [max(1, int(side * level)) for side in whole.size]
    return _from_pil(
        whole.resize((small[0], small[1]), Image.Resampling.BOX).resize(whole.size, Image.Resampling.BOX), image
    )


def _jpeg(image: Tensor, level: float, generator: torch.Generator) -> Tensor:
    file = io.BytesIO()
    _to_pil(image).save(file, "JPEG", quality=int(level))
    with open_image(file) as opened:
        return _from_pil(opened, image)


def _to_pil(image: Tensor) -> Image.Image:
    """Convert to an 8-bit image with one or three channels."""
    pixels = (image * 255).round().byte().movedim(0, -1).numpy()
    if pixels.shape[-1] not in (1, 3):
        raise UsageError(f"images must have 1 or 3 channels for JPEG and resizing, got {pixels.shape[-1]}")
    return Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels)


def _from_pil(image: Image.Image, like: Tensor) -> Tensor:
    pixels = torch.from_numpy(np.array(image)).to(like.dtype) / 255
    return pixels.reshape(*like.shape[1:], like.shape[0]).movedim(-1, 0)


_STD = "standard deviation"
_TABLE: tuple[tuple[str, tuple[float, ...], str, bool, Change], ...] = (  # name, levels, unit, random, change
    ("gaussian_noise", (0.08, 0.12, 0.18, 0.26, 0.38), f"{_STD}, for pixels between 0 and 1", True, _gaussian_noise),
    ("shot_noise", (60, 25, 12, 5, 3), "photons of a white pixel", True, _shot_noise),
    ("impulse_noise", (0.03, 0.06, 0.09, 0.17, 0.27), "share of values set to 0 or 1", True, _impulse_noise),
    ("speckle_noise", (0.15, 0.2, 0.35, 0.45, 0.6), f"{_STD}, relative to each value", True, _speckle_noise),
    ("gaussian_blur", (1, 2, 3, 4, 6), f"{_STD}, in pixels", False, _gaussian_blur),
    ("brightness", (0.1, 0.2, 0.3, 0.4, 0.5), "added to V of HSV", False, _brightness),
    ("contrast", (0.4, 0.3, 0.2, 0.1, 0.05), "factor of each value's distance to the mean", False, _contrast),
    ("pixelate", (0.6, 0.5, 0.4, 0.3, 0.25), "side of the small image, relative to the original", False, _pixelate),
    ("jpeg", (25, 18, 15, 10, 7), "JPEG quality", False, _jpeg),
)

CORRUPTIONS: Mapping[str, Corruption] = {
    name: Corruption(name=name, levels=levels, unit=unit, random=random, change=change)
    for name, levels, unit, random, change in _TABLE
}
