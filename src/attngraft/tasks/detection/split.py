"""Splits of images with objects: augmented examples for training, resized images for evaluation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from attngraft.errors import DataError
from attngraft.tasks.detection.annotated import AnnotatedImages
from attngraft.tasks.detection.augmentation import Size, augmented, resized
from attngraft.tasks.detection.config import DetectionTestConfig, ObjectAugmentConfig
from attngraft.tasks.detection.objects import RunLengths
from attngraft.tasks.detection.run_lengths import decoded
from attngraft.tasks.images.inputs import HostInput, image_to_tensor
from attngraft.tasks.seeding import generator
from attngraft.tasks.task import Batch, Split

_DECODED = 2**26  #: bytes of masks in the size of their image at a time


class ObjectSplit(Split):
    """Images with objects.

    A training example is an image (C, h, w) uint8 and its `boxes` (G, 4) float32 as left, top, right, bottom, `labels` (G,)
    int64 from 1 to K, and `masks` (G, h, w) uint8, without crowds. An example for evaluation has `image` (C, h, w) uint8,
    resized, its `objects` in pixels of the original image, with crowds, and the `size` (height, width) of that.

    Args:
        images: the images.
        host: the host's input, whose mean color fills the image outside of its borders.
        classes: names of the classes.
        masks: whether training examples have masks.
        augment: training augmentation, as a function of (seed, epoch, index); None: examples for evaluation.
        test: sizes of images for evaluation.
        canvas: height and width of the input of hosts of a fixed size, which no example exceeds; None: any size.
        seed: seed of the augmentation.
    """

    def __init__(
        self,
        images: AnnotatedImages,
        *,
        host: HostInput,
        classes: Sequence[str],
        masks: bool,
        test: DetectionTestConfig,
        augment: ObjectAugmentConfig | None = None,
        canvas: Size | None = None,
        seed: int = 0,
    ) -> None:
        self.images, self._host, self._classes, self._masks = images, host, tuple(classes), masks
        self._test, self._augment, self._canvas, self._seed = test, augment, canvas, seed
        self._fill = [round(255 * value) for value in host.mean]

    def take(self, indices: np.ndarray) -> ObjectSplit:
        """Return the split of some of the images."""
        return ObjectSplit(
            self.images.take(indices),
            host=self._host,
            classes=self._classes,
            masks=self._masks,
            test=self._test,
            augment=self._augment,
            canvas=self._canvas,
            seed=self._seed,
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, index = key
        image = image_to_tensor(self.images.image(index).convert(self._host.mode))
        objects, (width, height) = self.images.objects(index), self.images.size(index)
        if tuple(image.shape[-2:]) != (height, width):
            raise DataError(
                f"{self.images.images[index]}: {image.shape[2]} x {image.shape[1]}, but its annotation is for {width} x "
                f"{height}; correct one of them"
            )
        if self._augment is None:
            return {"image": resized(image, self._test, self._canvas), "objects": objects, "size": (height, width)}
        chosen = np.flatnonzero(~objects.crowd)
        parts = None
        if self._masks and objects.masks is not None:
            parts = _parts([objects.masks[i] for i in chosen.tolist()], (width, height))
        boxes = torch.from_numpy(objects.boxes[chosen]).float()
        random = generator(self._seed, epoch, index)
        image, boxes, masks, kept = augmented(
            image, boxes, parts, self._augment, fill=self._fill, random=random, canvas=self._canvas
        )
        target = {"boxes": boxes, "labels": torch.from_numpy(objects.labels[chosen] + 1)[kept]}
        return image, target if masks is None else {**target, "masks": masks}

    def collate(self, examples: list[Any]) -> Batch:
        """Return lists `image` and `target` in training, otherwise `image`, `objects` and `size`."""
        if self._augment is not None:
            return {"image": [image for image, _ in examples], "target": [target for _, target in examples]}
        return {key: [each[key] for each in examples] for key in ("image", "objects", "size")}

    def name(self, index: int) -> str:
        return self.images.names[index]

    def fingerprint(self) -> bytes:
        found = hashlib.sha256("\n".join(self._classes).encode())
        found.update(self.images.fingerprint())
        return found.digest()


def _parts(masks: Sequence[RunLengths], size: tuple[int, int]) -> Iterator[torch.Tensor]:
    """Yield the decoded masks in parts of limited memory, at least one."""
    step = max(1, _DECODED // (size[0] * size[1]))
    for start in range(0, max(1, len(masks)), step):
        yield torch.from_numpy(decoded(masks[start : start + step], size))
