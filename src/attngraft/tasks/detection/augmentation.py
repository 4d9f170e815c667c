"""Joint augmentation of images, boxes and masks, and the resizing of images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.ops import masks_to_boxes
from torchvision.transforms.v2 import functional as F

from attngraft.tasks.detection.config import DetectionTestConfig, ObjectAugmentConfig
from attngraft.tasks.images.recoloring import recolored

_FIRST_SIZES = (400, 500, 600)  #: shorter sides before the first crop of the papers, one of which is drawn
_FIRST_CROP = (384, 600)  #: smallest and largest side of that crop
_THINNEST = 1.0  #: pixels; objects with thinner boxes are dropped

Size = tuple[int, int]  #: height and width


def fitted_size(size: Size, short: int | None, longest: int | None, canvas: Size | None) -> Size:
    """Return the size to which an image is resized with its aspect ratio kept.

    Args:
        size: of the image.
        short: shorter side of the result; None: that of the image.
        longest: limit of the longer side of the result if `short` is given.
        canvas: height and width that the result must not exceed.
    """
    factor = 1.0 if short is None else short / min(size)
    if short is not None and longest is not None:
        factor = min(factor, longest / max(size))
    limits = size if canvas is None else canvas
    if canvas is not None:
        factor = min(factor, canvas[0] / size[0], canvas[1] / size[1])
    height, width = (max(1, round(side * factor)) for side in size)
    return (height, width) if canvas is None else (min(height, limits[0]), min(width, limits[1]))


def resized(image: Tensor, config: DetectionTestConfig, canvas: Size | None = None) -> Tensor:
    """Resize an image (C, H, W) uint8 for inference, with its aspect ratio kept.

    Args:
        image: the image.
        config: size of the result.
        canvas: height and width of the input of hosts of a fixed size, which the result fits into; it is not padded.
    """
    size = fitted_size((image.shape[-2], image.shape[-1]), config.size, config.longest, canvas)
    return _resize(tv_tensors.Image(image), size).as_subclass(Tensor)


def _resize(part: Any, size: Size) -> Any:
    # torch fails to resize to a single pixel
    return part if tuple(part.shape[-2:]) == size else F.resize(part, [max(2, size[0]), size[1]], antialias=True)


class _Scene:
    """An image with its boxes, which are transformed together, and the same transforms for masks."""

    def __init__(self, image: Tensor, boxes: Tensor) -> None:
        size = (image.shape[-2], image.shape[-1])
        self.image: Any = tv_tensors.Image(image)
        self.boxes = self._as_boxes(boxes, size)
        self._steps: list[Callable[[Any], Any]] = []  # for masks
        self.cut = False  #: whether a crop has removed pixels

    @staticmethod
    def _as_boxes(boxes: Tensor, size: Size) -> Any:
        return tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size)

    @property
    def size(self) -> Size:
        return self.image.shape[-2], self.image.shape[-1]

    def apply(self, transform: Callable[[Any], Any]) -> None:
        """Transform all parts."""
        self.image, self.boxes = transform(self.image), transform(self.boxes)
        self._steps.append(transform)

    def of_masks(self, masks: Tensor) -> Tensor:
        """Return masks (G, H, W) of the original image as those of the transformed one."""
        found: Any = tv_tensors.Mask(masks)
        for step in self._steps:
            found = step(found)
        return found.as_subclass(Tensor)

    def rotate(self, turns: int) -> None:
        """Rotate counterclockwise by multiples of 90 degrees, without the rounding of F.rotate."""
        for _ in range(turns):
            width = self.size[1]
            left, top, right, bottom = self.boxes.as_subclass(Tensor).unbind(1)
            self.image = tv_tensors.Image(_turned(self.image))
            self._steps.append(lambda masks: tv_tensors.Mask(_turned(masks)))
            self.boxes = self._as_boxes(torch.stack([top, width - right, bottom, width - left], dim=1), self.size)

    def resize(self, size: Size) -> None:
        """Resize to a height and width."""
        if size != self.size:
            self.apply(lambda each: _resize(each, size))

    def crop(self, size: Size, random: np.random.Generator) -> None:
        """Crop at a random place, to a size that is no larger than the image."""
        top, left = (int(random.integers(mine - side + 1)) for mine, side in zip(self.size, size, strict=True))
        if size != self.size:
            self.cut = True
            self.apply(lambda each: F.crop(each, top, left, *size))

    def pad(self, size: Size, fill: Sequence[int]) -> None:
        """Pad at the bottom and at the right."""
        below, right = (max(0, side - mine) for mine, side in zip(self.size, size, strict=True))
        if below or right:
            self.image = F.pad(self.image, [0, 0, right, below], fill=list(fill))
            self.boxes = self._as_boxes(self.boxes.as_subclass(Tensor), self.size)
            self._steps.append(lambda masks: F.pad(masks, [0, 0, right, below], fill=0))


def _turned(part: Any) -> Tensor:
    return torch.rot90(part.as_subclass(Tensor), 1, (-2, -1)).contiguous()


def augmented(
    image: Tensor,
    boxes: Tensor,
    masks: Iterable[Tensor] | None,
    config: ObjectAugmentConfig,
    *,
    fill: Sequence[int],
    random: np.random.Generator,
    canvas: Size | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Flip, rotate, resize, crop and recolor an image with its boxes and masks.

    Objects whose box is thinner than a pixel, or whose mask has vanished, are dropped. After a crop, the boxes of objects
    with masks are those of what remains of the masks.

    Args:
        image: (C, H, W) uint8.
        boxes: (G, 4) float32, left, top, right, bottom.
        masks: (G, H, W) uint8, one or more parts of some of the objects, whose memory is free after each; or None.
        config: settings of the augmentation.
        fill: color outside of the image.
        random: source of all draws.
        canvas: height and width that the result must not exceed.

    Returns:
        Image, boxes and masks, and the objects that remain, (G,) bool.
    """
    scene = _Scene(image, boxes)
    flips, turns, first = random.random(2), int(random.integers(4)), random.random() < config.crop_first
    if flips[0] < config.hflip:
        scene.apply(F.horizontal_flip)
    if flips[1] < config.vflip:
        scene.apply(F.vertical_flip)
    if config.rotate:
        scene.rotate(turns)
    if first:
        scene.resize(fitted_size(scene.size, int(random.choice(_FIRST_SIZES)), None, None))
        smallest, largest = _FIRST_CROP
        rows, columns = (int(random.integers(min(side, smallest), min(side, largest) + 1)) for side in scene.size)
        scene.crop((rows, columns), random)
    short = int(random.choice(config.size)) if config.size else None
    scene.resize(fitted_size(scene.size, short, config.longest, canvas))
    if config.crop is not None:
        rows, columns = (min(pair) for pair in zip(config.crop, canvas or config.crop, strict=True))
        scene.crop((min(rows, scene.size[0]), min(columns, scene.size[1])), random)
        scene.pad((rows, columns), fill)
    pixels = scene.image.as_subclass(Tensor)
    if config.photometric:
        pixels = recolored(tv_tensors.Image(pixels), random).as_subclass(Tensor)
    return pixels, *_remaining(scene, masks)


def _remaining(scene: _Scene, masks: Iterable[Tensor] | None) -> tuple[Tensor, Tensor | None, Tensor]:
    boxes = F.clamp_bounding_boxes(scene.boxes).as_subclass(Tensor)
    kept = (boxes[:, 2:] - boxes[:, :2] >= _THINNEST).all(1)
    if masks is None:
        return boxes[kept], None, kept
    seen, parts = [], []
    for part in map(scene.of_masks, masks):
        seen.append(part.flatten(1).amax(1) > 0)
        parts.append(part[seen[-1]])
    visible, remaining = torch.cat(seen), torch.cat(parts)
    if not scene.cut:
        remaining = remaining[kept[visible]]
        kept &= visible
        return boxes[kept], remaining, kept
    found = masks_to_boxes(remaining).to(boxes.dtype)
    found[:, 2:] += 1  # the right and lower edges of the last pixels
    return found, remaining, visible
