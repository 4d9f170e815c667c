"""Labelled images as the engine's `Split`: decoded one at a time, or held as bytes and moved in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from attngraft.errors import ConfigError
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.sampling import Sampling, draw_by_class
from attngraft.tasks.images.sources import Images, in_mode
from attngraft.tasks.images.streaming import shelf_order
from attngraft.tasks.images.views import View, ViewPlan
from attngraft.tasks.seeding import generator, seeded
from attngraft.tasks.task import Split

Example = tuple[Tensor, Any]  #: image; a class (whole number), or a row of 0 and 1, one per class


@dataclass(frozen=True, kw_only=True)
class Common:
    """What the splits of one source share."""

    classes: tuple[str, ...]
    host: HostInput
    seed: int  #: of augmentation


@dataclass(frozen=True, kw_only=True)
class Taking:
    """How an epoch takes examples; `LabelledSplit` says what each means."""

    repeats: int = 1
    sampling: Sampling | None = None
    buffer: int | None = None


ONCE = Taking()  #: each once, in an order of the engine's


class LabelledSplit(Split):
    """Examples are (image, label); a batch has `image` (B, C, H, W), bytes or normalized float32, and `target`: (B,) int64,
    or (B, classes) uint8 where images have several labels.

    How an epoch takes its examples is `taking`.

    With `repeats` R above 1 (repeated augmentation: Hoffer et al. 2020) an epoch takes one R-th of the examples, drawn
    anew each epoch, R times in a row with views of their own, and is as long as without. Repeat r of an example has the
    index `r * len + example`. With `sampling` an epoch, still as long, takes classes in other shares than they have; an
    example that is taken again is a further repeat. Both go together. With `buffer` an epoch goes through large files one
    behind the other (`streaming.shelf_order`), without the other two.
    """

    def __init__(
        self,
        images: Images,
        *,
        common: Common,
        taking: Taking = ONCE,
    ) -> None:
        self.images, self.names, self.labels = images, images.names, images.labels
        self.classes, self.host, self.seed, self.taking = common.classes, common.host, common.seed, taking

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        return self.names[index % len(self)]

    def order(self, *, seed: int, epoch: int) -> np.ndarray | None:
        length, stream, taking = len(self), generator(seed, epoch, -1), self.taking
        if taking.buffer is not None and self.images.shelf is not None:
            return shelf_order(self.images.shelf, buffer=taking.buffer, stream=stream)
        if taking.repeats == 1 and taking.sampling is None:
            return None
        size = -(-length // taking.repeats)
        if taking.sampling is None:
            first = stream.permutation(length)[:size]
        else:
            chosen, turns = draw_by_class(self.labels, size=size, sampling=taking.sampling, stream=stream)
            first = chosen + length * taking.repeats * turns
        return (first[:, None] + length * np.arange(taking.repeats)).reshape(-1)[:length]

    def part(self, indices: np.ndarray) -> LabelledSplit:
        """The examples at `indices` alone, of a split whose views are fixed.

        Raises:
            ConfigError: the split has no parts.
        """
        raise ConfigError(f"task: a {type(self).__name__} cannot be evaluated in parts")

    def _common(self) -> Common:
        return Common(classes=self.classes, host=self.host, seed=self.seed)

    def collate(self, examples: list[Example]) -> dict[str, Tensor]:
        images, labels = zip(*examples, strict=True)
        return {
            "image": default_collate(list(images)),  # in a loading process: stacked in shared memory at once
            "target": torch.from_numpy(np.stack(labels)),
        }


class ImageSplit(LabelledSplit):
    """Images opened one at a time, each through `view` with generators seeded by (seed, epoch, index)."""

    def __init__(
        self,
        images: Images,
        view: View,
        *,
        common: Common,
        taking: Taking = ONCE,
    ) -> None:
        super().__init__(images, common=common, taking=taking)
        self.view = view

    def __getitem__(self, key: tuple[int, int]) -> Example:
        epoch, index = key
        place = index % len(self)
        image = in_mode(self.images.open(place), self.host.mode)
        with seeded("augment", self.seed, epoch, index):
            return self.view(image), self.labels[place]

    def part(self, indices: np.ndarray) -> ImageSplit:
        return ImageSplit(self.images.take(indices, self.labels[indices]), self.view, common=self._common())


class PixelSplit(LabelledSplit):
    """Fixed views as bytes in memory, (N, C, H, W); training shifts and flips them by `plan`, evaluation (None) does not.

    Views of images that lie in memory are made at once, those of files when first asked for (in each worker apart).
    Random numbers come from a counter-based generator at (seed, epoch, index), so that nothing global is touched.
    """

    def __init__(
        self,
        images: Images,
        view: View,
        plan: ViewPlan | None,
        *,
        common: Common,
        taking: Taking = ONCE,
    ) -> None:
        super().__init__(images, common=common, taking=taking)
        host, margin = common.host, plan.padding if plan else 0
        shape = (len(images), host.channels, host.height + 2 * margin, host.width + 2 * margin)
        self.plan, self.pixels = plan, np.zeros(shape, dtype=np.uint8)
        self.made, self.view = np.zeros(len(images), dtype=bool), view
        if images.in_memory:
            for index in range(len(images)):
                self._make(index)

    def __getitem__(self, key: tuple[int, int]) -> Example:
        epoch, index = key
        place = index % len(self)
        if not self.made[place]:
            self._make(place)
        pixels = self.pixels[place]
        if self.plan is not None:
            pixels = self._moved(pixels, self.plan, generator(self.seed, epoch, index).random(4))
        return torch.from_numpy(np.ascontiguousarray(pixels)), self.labels[place]

    def part(self, indices: np.ndarray) -> PixelSplit:
        return PixelSplit(self.images.take(indices, self.labels[indices]), self.view, None, common=self._common())

    def _make(self, index: int) -> None:
        margin = self.plan.padding if self.plan else 0
        inner = self.pixels[index, :, margin : margin + self.host.height, margin : margin + self.host.width]
        inner[:] = self.view(in_mode(self.images.open(index), self.host.mode)).numpy()
        self.made[index] = True

    def _moved(self, pixels: np.ndarray, plan: ViewPlan, draws: np.ndarray) -> np.ndarray:
        top, left = (int(draw * (2 * plan.padding + 1)) for draw in draws[:2])
        pixels = pixels[:, top : top + self.host.height, left : left + self.host.width]
        if draws[2] < plan.hflip:
            pixels = pixels[:, :, ::-1]
        if draws[3] < plan.vflip:
            pixels = pixels[:, ::-1]
        return pixels
