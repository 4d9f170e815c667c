"""Splits of labeled images: decoded one at a time, or cached as bytes and augmented in memory."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from attngraft.errors import ConfigError
from attngraft.tasks.images.inputs import Example, HostInput
from attngraft.tasks.images.sampling import Sampling, draw_by_class, shard_order
from attngraft.tasks.images.sources import Images, in_mode
from attngraft.tasks.images.transforms import Transform, TransformPlan
from attngraft.tasks.seeding import generator, seeded
from attngraft.tasks.task import Split


@dataclass(frozen=True, kw_only=True)
class EpochSampling:
    """Selection and order of the examples in an epoch; see `LabelledSplit`."""

    repeats: int = 1
    sampling: Sampling | None = None
    shuffle_buffer: int | None = None


class LabelledSplit(Split):
    """Examples (image, label) of labeled images.

    A batch has `image` (B, C, H, W), uint8 or normalized float32, and `target`: (B,) int64, or (B, classes) uint8 for
    multi-label images.

    `EpochSampling` defines the epochs; the length of an epoch is always the number of examples. `repeats` R > 1 is repeated
    augmentation (Hoffer et al. 2020): an epoch contains a random 1 / R of the examples, each R times in a row with different
    augmentation; repeat r of an example has the index `r * len + example`. `sampling` changes the class frequencies; an
    example that is drawn again counts as another repeat. These two can be combined. `shuffle_buffer` reads large files one
    after another (`sampling.shard_order`) and cannot be combined with them.
    """

    def __init__(
        self,
        images: Images,
        transform: Transform,
        *,
        host: HostInput,
        seed: int,
        epoch_sampling: EpochSampling | None = None,
    ) -> None:
        self.images, self.names, self.labels, self.transform = images, images.names, images.labels, transform
        self.host, self.seed, self.epoch_sampling = host, seed, epoch_sampling or EpochSampling()

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        return self.names[index % len(self)]

    def fingerprint(self) -> bytes:
        return np.ascontiguousarray(self.labels).tobytes() + self.images.digest().encode()

    def order(self, *, seed: int, epoch: int) -> np.ndarray | None:
        length, stream, options = len(self), generator(seed, epoch, -1), self.epoch_sampling
        if options.shuffle_buffer is not None and self.images.shard_index is not None:
            return shard_order(self.images.shard_index, buffer=options.shuffle_buffer, stream=stream)
        if options.repeats == 1 and options.sampling is None:
            return None
        size = -(-length // options.repeats)
        if options.sampling is None:
            first = stream.permutation(length)[:size]
        else:
            chosen, turns = draw_by_class(self.labels, size=size, sampling=options.sampling, stream=stream)
            first = chosen + length * options.repeats * turns
        return (first[:, None] + length * np.arange(options.repeats)).reshape(-1)[:length]

    def subset(self, indices: np.ndarray) -> LabelledSplit:
        """Return a split of the examples at `indices` only; requires a deterministic transform.

        Raises:
            ConfigError: this kind of split does not support subsets.
        """
        raise ConfigError(f"task: a {type(self).__name__} does not support subsets; remove --limit")

    def collate(self, examples: list[Example]) -> dict[str, Tensor]:
        images, labels = zip(*examples, strict=True)
        return {
            "image": default_collate(list(images)),  # in a loading process, stack directly into shared memory
            "target": torch.from_numpy(np.stack(labels)),
        }


class ImageSplit(LabelledSplit):
    """Images opened one at a time and transformed with random generators seeded by (seed, epoch, index)."""

    def __getitem__(self, key: tuple[int, int]) -> Example:
        epoch, index = key
        position = index % len(self)
        image = in_mode(self.images.open(position), self.host.mode)
        with seeded("augment", self.seed, epoch, index):
            return self.transform(image), self.labels[position]

    def subset(self, indices: np.ndarray) -> ImageSplit:
        images = self.images.take(indices, self.labels[indices])
        return ImageSplit(images, self.transform, host=self.host, seed=self.seed)


class PixelSplit(LabelledSplit):
    """Resized images cached as bytes (N, C, H, W); shifted and flipped according to `plan` (None: evaluation).

    Images are cached on first access, in memory that forked worker processes share. Random numbers come from a counter-based
    generator keyed by (seed, epoch, index), so no global generator is used.
    """

    def __init__(
        self,
        images: Images,
        transform: Transform,
        plan: TransformPlan | None,
        *,
        host: HostInput,
        seed: int,
        epoch_sampling: EpochSampling | None = None,
    ) -> None:
        super().__init__(images, transform, host=host, seed=seed, epoch_sampling=epoch_sampling)
        margin = plan.padding if plan else 0
        shape = (len(images), host.channels, host.height + 2 * margin, host.width + 2 * margin)
        memory = mmap.mmap(
            -1, max(math.prod(shape), 1)
        )  # shared with forked processes; pages are allocated when written
        self.plan, self.pixels = plan, np.frombuffer(memory, dtype=np.uint8, count=math.prod(shape)).reshape(shape)
        self.cached = np.zeros(len(images), dtype=bool)  # not shared: another process may be about to write the pixels

    def __getitem__(self, key: tuple[int, int]) -> Example:
        epoch, index = key
        position = index % len(self)
        if not self.cached[position]:
            self._cache(position)
        pixels = self.pixels[position]
        if self.plan is not None:
            plan, draws = self.plan, generator(self.seed, epoch, index).random(4)
            top, left = (int(draw * (2 * plan.padding + 1)) for draw in draws[:2])
            pixels = pixels[:, top : top + self.host.height, left : left + self.host.width]
            if draws[2] < plan.hflip:
                pixels = pixels[:, :, ::-1]
            if draws[3] < plan.vflip:
                pixels = pixels[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(pixels)), self.labels[position]

    def subset(self, indices: np.ndarray) -> PixelSplit:
        images = self.images.take(indices, self.labels[indices])
        return PixelSplit(images, self.transform, None, host=self.host, seed=self.seed)

    def _cache(self, index: int) -> None:
        margin = self.plan.padding if self.plan else 0
        inner = self.pixels[index, :, margin : margin + self.host.height, margin : margin + self.host.width]
        inner[:] = self.transform(in_mode(self.images.open(index), self.host.mode)).numpy()
        self.cached[index] = True
