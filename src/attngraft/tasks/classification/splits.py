"""Labelled images as the engine's `Split`: decoded one at a time, or held as bytes and moved in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from attngraft.tasks.classification.inputs import HostInput
from attngraft.tasks.classification.sources import Images, in_mode
from attngraft.tasks.classification.views import View, ViewPlan
from attngraft.tasks.seeding import generator, seeded
from attngraft.tasks.task import Split

Example = tuple[Tensor, int, int]  #: image, label, index


class LabelledSplit(Split):
    """Examples are (image, label, index); a batch has `image` (B, C, H, W) float32, `target` (B,), `index` (B,)."""

    def __init__(
        self,
        names: Sequence[str],
        labels: np.ndarray,
        *,
        classes: Sequence[str],
        host: HostInput,
        seed: int,
        repeats: int,
    ) -> None:
        self.names, self.labels, self.classes = names, labels, tuple(classes)
        self.host, self.seed, self.repeats = host, seed, repeats

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        return self.names[index]

    def collate(self, examples: list[Example]) -> dict[str, Tensor]:
        images, labels, indices = zip(*examples, strict=True)
        image = torch.stack(images)
        return {
            "image": self.host.normalize(image) if image.dtype == torch.uint8 else image,
            "target": torch.tensor(labels),
            "index": torch.tensor(indices),
        }


class ImageSplit(LabelledSplit):
    """Images opened one at a time, each through `view` with generators seeded by (seed, epoch, index, repeat)."""

    def __init__(
        self, images: Images, view: View, *, classes: Sequence[str], host: HostInput, seed: int, repeats: int = 1
    ) -> None:
        super().__init__(images.names, images.labels, classes=classes, host=host, seed=seed, repeats=repeats)
        self.images, self.view = images, view

    def __getitem__(self, key: tuple[int, ...]) -> Example:
        epoch, index, repeat = (*key, 0)[:3]
        image = in_mode(self.images.open(index), self.host.mode)
        with seeded("augment", self.seed, epoch, index, repeat):
            return self.view(image), int(self.labels[index]), index


class PixelSplit(LabelledSplit):
    """Fixed views as bytes in memory, (N, C, H, W); training shifts and flips them by `plan`, evaluation (None) does not.

    Views of images that lie in memory are made at once, those of files when first asked for (in each worker apart).
    Random numbers come from a counter-based generator at (seed, epoch, index, repeat), so that nothing global is touched.
    """

    def __init__(
        self,
        images: Images,
        view: View,
        plan: ViewPlan | None,
        *,
        classes: Sequence[str],
        host: HostInput,
        seed: int,
        repeats: int = 1,
    ) -> None:
        super().__init__(images.names, images.labels, classes=classes, host=host, seed=seed, repeats=repeats)
        margin = plan.padding if plan else 0
        shape = (len(images), host.channels, host.height + 2 * margin, host.width + 2 * margin)
        self.plan, self.pixels = plan, np.zeros(shape, dtype=np.uint8)
        self.made = np.zeros(len(images), dtype=bool)
        self.images, self.view = images, view
        if images.in_memory:
            for index in range(len(images)):
                self._make(index)

    def __getitem__(self, key: tuple[int, ...]) -> Example:
        epoch, index, repeat = (*key, 0)[:3]
        if not self.made[index]:
            self._make(index)
        pixels = self.pixels[index]
        if self.plan is not None:
            pixels = self._moved(pixels, self.plan, generator(self.seed, epoch, index, repeat).random(4))
        return torch.from_numpy(np.ascontiguousarray(pixels)), int(self.labels[index]), index

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
