"""Changes of images: one at a time in the data loading processes, or in batches with access to the model.

A change of one image takes pixels (C, H, W), a random generator and the mean color, and returns pixels; a change of a batch
takes pixels (B, C, H, W), an `AttackTarget` and the noise seed, and raises `UnsupportedCondition` for models that do not
support it. Pixels are between 0 and 1, before normalization. Random numbers depend only on the noise seed and
the example's index in the full data, not on order or process.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from attngraft.errors import HostError, RecordError, UsageError
from attngraft.hosts import find_host
from attngraft.recording.attention_maps import full_attention_map
from attngraft.recording.record import record
from attngraft.recording.recording import Recording
from attngraft.tasks.images.suites.attacks import fgsm, pgd
from attngraft.tasks.images.suites.corruptions import corruption
from attngraft.tasks.images.suites.missing import drop_patches, hide_center
from attngraft.tasks.suites import BatchTarget, UnsupportedCondition, noise_generator

GRID = 14  #: largest number of patches along a side, as for patches of 16 pixels in an image of 224 pixels

Color = tuple[float, ...]  #: one value per channel


@dataclass(frozen=True)
class Corrupted:
    """Apply the corruption `name` at `level`, in the unit of the corruption."""

    name: str
    level: float

    def __call__(self, pixels: Tensor, generator: torch.Generator, *, color: Color) -> Tensor:
        return corruption(self.name).apply(pixels, self.level, generator)


@dataclass(frozen=True)
class CenterHidden:
    """Fill the central rectangle, with sides `side` times those of the image, with the mean color."""

    side: float

    def __call__(self, pixels: Tensor, generator: torch.Generator, *, color: Color) -> Tensor:
        return hide_center(pixels, side=self.side, fill=torch.tensor(color))


@dataclass(frozen=True)
class PatchesDropped:
    """Fill a random share of the patches with the mean color."""

    share: float

    def __call__(self, pixels: Tensor, generator: torch.Generator, *, color: Color) -> Tensor:
        side = patch_side(int(pixels.shape[-2]), int(pixels.shape[-1]))
        count = patch_count(pixels, side, share=self.share)
        scores = torch.rand(1, count, generator=generator)
        dropped = drop_patches(pixels[None], scores, share=self.share, patch=side, fill=torch.tensor(color))
        return dropped[0]


def patch_side(height: int, width: int) -> int:
    """Return the smallest side of square patches that tile the image, with at most `GRID` along a side.

    Raises:
        UnsupportedCondition: there is no such side.
    """
    both = math.gcd(height, width)
    for side in range(1, both + 1):
        if both % side == 0 and max(height, width) // side <= GRID:
            return side
    raise UnsupportedCondition(
        f"images of {height} x {width} cannot be divided into square patches with at most {GRID} along a side"
    )


def patch_count(pixels: Tensor, side: int, *, share: float) -> int:
    """Return the number of patches of `side` pixels in images (..., H, W).

    Raises:
        UnsupportedCondition: the `share` of patches, rounded, is none or all of them.
    """
    height, width = int(pixels.shape[-2]), int(pixels.shape[-1])
    count = height // side * (width // side)
    gone = round(share * count)
    if not 0 < gone < count:
        patches = f"{count} patch{'es' * (count != 1)} of {side} x {side} pixels"
        raise UnsupportedCondition(
            f"images of {height} x {width} have {patches}; {share:.0%} of them, rounded, is {'all' if gone else 'none'}"
        )
    return count


@dataclass(frozen=True, kw_only=True)
class AttackTarget(BatchTarget):
    """Model and batch under attack; changed batches are pixels (B, C, H, W) between 0 and 1."""

    color: Color


@dataclass(frozen=True)
class OneStep:
    """FGSM (`attacks.fgsm`)."""

    epsilon: float
    gradients: ClassVar[bool] = True

    def __call__(self, pixels: Tensor, target: AttackTarget, *, noise_seed: int) -> Tensor:
        return fgsm(lambda x: target.losses(x).sum(), pixels, epsilon=self.epsilon)


@dataclass(frozen=True)
class ManySteps:
    """PGD (`attacks.pgd`) from a random start."""

    epsilon: float
    steps: int = 10
    gradients: ClassVar[bool] = True

    def __call__(self, pixels: Tensor, target: AttackTarget, *, noise_seed: int) -> Tensor:
        shape = pixels.shape[1:]
        draws = [2 * torch.rand(shape, generator=noise_generator(noise_seed, index)) - 1 for index in target.indices]
        return pgd(
            lambda x: target.losses(x).sum(),
            pixels,
            epsilon=self.epsilon,
            steps=self.steps,
            start=torch.stack(draws),
        )


@dataclass(frozen=True)
class SalientDropped:
    """Fill the share of patches that get the most attention in the model's last layer with the mean color."""

    share: float
    gradients: ClassVar[bool] = False

    def __call__(self, pixels: Tensor, target: AttackTarget, *, noise_seed: int) -> Tensor:
        found = patch_salience(target.model, lambda: target.outputs(pixels), size=(pixels.shape[-2], pixels.shape[-1]))
        patch_count(pixels, found.patch, share=self.share)
        target.report(f"salience: {found.by}")
        return drop_patches(
            pixels,
            found.scores.to(pixels),
            share=self.share,
            patch=found.patch,
            fill=torch.tensor(target.color),
        )


@dataclass(frozen=True, kw_only=True)
class PatchSalience:
    """Salience scores of patches, and their origin."""

    scores: Tensor  #: (B, rows * columns)
    patch: int  #: side of a patch in pixels
    by: str  #: description of the scores


def patch_salience(model: nn.Module, run: Callable[[], object], *, size: tuple[int, int]) -> PatchSalience:
    """Return the attention that each patch of the images gets, averaged over heads.

    This is the class token's row of the last attention map (Naseer et al. 2021); without a class token, the
    mean of all rows.

    Args:
        model: a model that a host adapter supports.
        run: runs the model on the images.
        size: size of the images, (H, W).

    Raises:
        UnsupportedCondition: the model has no attention over the patches.
    """
    try:
        host = find_host(model)
    except HostError as error:
        raise UnsupportedCondition(f"cannot record this model's attention: {str(error).splitlines()[0]}") from None
    why = "its host has no attention over the patches"
    for site in reversed([site for site in host.sites if "weights" in site.targets]):
        try:
            with torch.no_grad(), record(host.core, "weights", sites=site.path) as recording:
                run()
            return _recorded_salience(recording, site.path, size)
        except (RecordError, UnsupportedCondition, UsageError) as error:
            why = str(error).splitlines()[0]
    raise UnsupportedCondition(f"this model has no attention over the patches of the image: {why}")


def _recorded_salience(recording: Recording, site: str, size: tuple[int, int]) -> PatchSalience:
    weights, prefix, indices = recording[site]["weights"].float(), recording.prefix(site), recording.token_indices(site)
    rows, columns = (int(number) for number in indices.shape)
    if rows * columns < 2:
        raise UnsupportedCondition(f"{site} has a map of {rows} x {columns}; at least two patches are required")
    if size[0] % rows or size[1] % columns or size[0] // rows != size[1] // columns:
        raise UnsupportedCondition(
            f"{site} has a map of {rows} x {columns}, which does not divide images of {size[0]} x {size[1]} into squares"
        )
    if "class" in prefix:
        row = weights[:, :, prefix.index("class")].mean(1)
        if row.shape[1] != len(prefix) + indices.numel():
            raise UnsupportedCondition(f"{site} has {row.shape[1]} tokens, but a map of {rows} x {columns}")
        scores, by = row[:, indices.flatten().to(row.device)], "the class token's row"
    else:
        scores, by = full_attention_map(weights, indices.to(weights.device)).mean((1, 2)), "the mean over all tokens"
    return PatchSalience(scores=scores, patch=size[0] // rows, by=f"{by} at {site}")
