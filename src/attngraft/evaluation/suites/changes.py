"""What a condition does to examples: one image at a time where they are loaded, or a batch where the model is.

Images are between 0 and 1, before normalization. Changes of one image go to loading processes; those of batches may ask the
model (`Victim`). What is random is a function of the noise seed and the example's number, never of order or process.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from attngraft.evaluation.attacks import fgsm, pgd
from attngraft.evaluation.corruptions import corruption
from attngraft.evaluation.missing import drop_patches, hide_center
from attngraft.evaluation.suites.salience import NotPossible, salience

GRID = 14  #: patches along a side where that divides the image: those of 16 pixels of an image of 224

Color = tuple[float, ...]  #: of each channel


def noise_of(seed: int, number: int) -> torch.Generator:
    """Random numbers of one example's own. Severities share them, so that more noise is more of the same."""
    words = np.random.SeedSequence([zlib.crc32(b"noise"), seed, number]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(words[0]))


class ExampleChange(Protocol):
    """Changes an image (C, H, W); `color` is the mean color."""

    def __call__(self, pixels: Tensor, generator: torch.Generator, *, color: Color) -> Tensor: ...


@dataclass(frozen=True)
class Corrupted:
    """A corruption by name, at a level in its own unit."""

    name: str
    level: float

    def __call__(self, pixels: Tensor, generator: torch.Generator, *, color: Color) -> Tensor:
        return corruption(self.name).apply(pixels, self.level, generator)


@dataclass(frozen=True)
class CenterHidden:
    """The central rectangle of `side` of the image's sides in the mean color, which normalization makes 0."""

    side: float

    def __call__(self, pixels: Tensor, generator: torch.Generator, *, color: Color) -> Tensor:
        return hide_center(pixels, side=self.side, fill=torch.tensor(color))


@dataclass(frozen=True)
class PatchesDropped:
    """A share of the patches, drawn at random, in the mean color."""

    share: float

    def __call__(self, pixels: Tensor, generator: torch.Generator, *, color: Color) -> Tensor:
        side = patch_side(int(pixels.shape[-2]), int(pixels.shape[-1]))
        count = patch_count(pixels, side, share=self.share)
        scores = torch.rand(1, count, generator=generator)
        dropped = drop_patches(pixels[None], scores, share=self.share, patch=side, fill=torch.tensor(color))
        return dropped[0]


def patch_side(height: int, width: int) -> int:
    """Pixels of a square patch: the smallest that divides both sides and makes at most `GRID` patches of the longer one.

    Raises:
        NotPossible: there is none.
    """
    both = math.gcd(height, width)
    for side in range(1, both + 1):
        if both % side == 0 and max(height, width) // side <= GRID:
            return side
    raise NotPossible(f"images of {height} x {width} cannot be cut into at most {GRID} square patches along a side")


def patch_count(pixels: Tensor, side: int, *, share: float) -> int:
    """How many patches of `side` pixels the images (..., H, W) have.

    Raises:
        NotPossible: the `share` of them, in whole patches, is none or all.
    """
    height, width = int(pixels.shape[-2]), int(pixels.shape[-1])
    count = height // side * (width // side)
    gone = round(share * count)
    if not 0 < gone < count:
        patches = f"{count} patch{'es' * (count != 1)} of {side} x {side} pixels"
        raise NotPossible(
            f"images of {height} x {width} are {patches}, of which {share:.0%} would be {'all' if gone else 'none'}"
        )
    return count


@dataclass(frozen=True, kw_only=True)
class Victim:
    """A model and a batch, as attacks see them."""

    model: nn.Module
    outputs: Callable[[Tensor], Any]  #: of pixels (B, C, H, W) between 0 and 1
    losses: Callable[[Tensor], Tensor]  #: of the same, by example (B,), in full precision
    numbers: Sequence[int]  #: of the examples
    color: Color
    say: Callable[[str], None] = lambda text: None  #: told how the change was made, where that is the model's affair


class BatchChange(Protocol):
    """Changes a batch of images (B, C, H, W)."""

    gradients: ClassVar[bool]  #: whether it goes backward through the model, which takes more memory

    def __call__(self, pixels: Tensor, victim: Victim, *, noise_seed: int) -> Tensor:
        """
        Raises:
            NotPossible: the model does not offer what this needs.
        """


@dataclass(frozen=True)
class OneStep:
    """FGSM."""

    epsilon: float
    gradients: ClassVar[bool] = True

    def __call__(self, pixels: Tensor, victim: Victim, *, noise_seed: int) -> Tensor:
        return fgsm(lambda x: victim.losses(x).sum(), pixels, epsilon=self.epsilon)


@dataclass(frozen=True)
class ManySteps:
    """PGD from a random start."""

    epsilon: float
    steps: int = 10
    gradients: ClassVar[bool] = True

    def __call__(self, pixels: Tensor, victim: Victim, *, noise_seed: int) -> Tensor:
        shape = pixels.shape[1:]
        draws = [2 * torch.rand(shape, generator=noise_of(noise_seed, number)) - 1 for number in victim.numbers]
        return pgd(
            lambda x: victim.losses(x).sum(),
            pixels,
            epsilon=self.epsilon,
            steps=self.steps,
            start=torch.stack(draws),
        )


@dataclass(frozen=True)
class SalientDropped:
    """The share of patches at which the model's last attention looks most, in the mean color."""

    share: float
    gradients: ClassVar[bool] = False

    def __call__(self, pixels: Tensor, victim: Victim, *, noise_seed: int) -> Tensor:
        found = salience(victim.model, lambda: victim.outputs(pixels), size=(pixels.shape[-2], pixels.shape[-1]))
        patch_count(pixels, found.patch, share=self.share)
        victim.say(f"looked at: {found.by}")
        return drop_patches(
            pixels,
            found.scores.to(pixels),
            share=self.share,
            patch=found.patch,
            fill=torch.tensor(victim.color),
        )
