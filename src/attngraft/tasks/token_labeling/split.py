"""Training images with their label maps."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import Compose

from attngraft.errors import DataError
from attngraft.tasks.images.sources import in_mode
from attngraft.tasks.images.splits import ImageSplit, LabelledSplit
from attngraft.tasks.seeding import seeded
from attngraft.tasks.task import Split
from attngraft.tasks.token_labeling.maps import LabelMaps
from attngraft.tasks.token_labeling.views import TrackedView, cuts_out


class MappedSplit(Split):
    """The examples of `split`; a batch has besides `image` and `target` also `maps` (B, 2, K, Y, X) and `shown` (B, 6).

    Whether every image has a map is seen when an order is asked for: by training, before its first step, and by nobody who
    only evaluates.
    """

    def __init__(self, split: ImageSplit, view: TrackedView, maps: LabelMaps) -> None:
        self.split, self.view, self.maps = split, view, maps
        self.checked = False

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, index = key
        split, place = self.split, index % len(self)
        image = in_mode(split.images.open(place), split.host.mode)
        with seeded("augment", split.seed, epoch, index):
            seen, shown = self.view(image)
        return (seen, split.labels[place]), self.maps.read(self.name(index)), shown.tensor()

    def collate(self, examples: list[Any]) -> dict[str, Tensor]:
        pairs, maps, shown = zip(*examples, strict=True)
        if len(shapes := {tuple(each.shape) for each in maps}) > 1:
            raise DataError(
                f"{self.maps.folder}: label maps of different shapes, {', '.join(map(str, sorted(shapes)))}; all must have "
                "the same rows, columns and numbers of classes"
            )
        return {**self.split.collate(list(pairs)), "maps": torch.stack(maps), "shown": torch.stack(shown)}

    def name(self, index: int) -> str:
        return self.split.name(index)

    def order(self, *, seed: int, epoch: int) -> np.ndarray | None:
        """As the split's own.

        Raises:
            DataError: images without a label map.
        """
        if not self.checked:
            self.maps.check([self.name(index) for index in range(len(self))])
            self.checked = True
        return self.split.order(seed=seed, epoch=epoch)


def with_maps(split: LabelledSplit, maps: LabelMaps) -> MappedSplit:
    """`split` and its maps.

    Raises:
        DataError: its views do not say which part of the image they show.
    """
    if not isinstance(split, ImageSplit) or not cuts_out(split.view):
        raise DataError(
            "task.token_labels.maps: label maps need views that are cut out of the image; set task.augment.crop to resized"
        )
    return MappedSplit(split, TrackedView(cast(Compose, split.view)), maps)
