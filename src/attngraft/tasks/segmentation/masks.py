"""Masks as label maps, and images with masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from attngraft.errors import DataError
from attngraft.suggest import quoted
from attngraft.tasks.images.boundaries import IGNORED
from attngraft.tasks.images.stored import Stored, read_image, read_mask
from attngraft.tasks.segmentation.coco import CocoSplit

VALUES = ("P", "L", "1", "I", "I;16")  #: Pillow's modes of masks with one value per pixel

_BLOCK = 2**24  #: number of pixels whose colors are converted at once

Color = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Meaning of the values of masks."""

    classes: tuple[str, ...]
    colors: tuple[Color, ...]
    table: np.ndarray  #: (256,) class of each value, `IGNORED`, or -1 for values without a class
    rgb: Mapping[int, int] | None = None  #: packed color -> class, for RGB masks; None: masks have values
    coco: Mapping[Stored, CocoSplit] = field(default_factory=dict)  #: COCO annotations with the label map, by mask

    def read(self, path: Stored) -> np.ndarray:
        """Return the label map (H, W) uint8 of a mask.

        Raises:
            DataError: the file is not such a mask, or has a value without a class.
        """
        if self.coco:
            return self._of_values(Image.fromarray(self.coco[path].labels(path)))
        image = read_mask(path)
        if self.rgb is not None:
            return self._of_colors(np.asarray(image.convert("RGB")), path, self.rgb)
        if image.mode not in VALUES:
            raise DataError(
                f"{path}: a mask in mode {image.mode}; masks have one value per pixel, or, with a class file whose "
                "lines are `name r g b` (--set task.data.classes_file=FILE), colors"
            )
        if image.mode == "P":
            self._check_palette(image, path)
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 255:
            label = int(values.min() if values.min() < 0 else values.max())
            raise DataError(f"{path}: contains the label {label}; labels are 0 to 254, and 255 is ignored")
        image = Image.fromarray(values.astype(np.uint8, copy=False))
        for label, count in enumerate(image.histogram()):
            if count and self.table[label] < 0:
                raise DataError(
                    f"{path}: contains the label {label}, but there are {len(self.classes)} classes; correct the mask, add "
                    f"a line to the class file, or ignore it with --set 'task.data.ignore=[{label}]'"
                )
        return self._of_values(image)

    def _check_palette(self, image: Image.Image, path: Stored) -> None:
        """Refuse a mask whose palette has the classes' colors in another order; other palettes have no meaning."""
        palette = image.getpalette() or []
        used = [label for label, count in enumerate(image.histogram()) if count and 0 <= self.table[label] < IGNORED]
        colors = {label: tuple(palette[3 * label : 3 * label + 3]) for label in used}
        if set(colors.values()) <= {*self.colors}:
            for label, color in colors.items():
                if self.colors[self.table[label]] != color:
                    other, own = self.classes[self.colors.index(color)], self.classes[self.table[label]]
                    raise DataError(
                        f"{path}: the label {label}, {quoted(own)}, has the color of {quoted(other)}; give all masks one "
                        "palette, in the order of the classes"
                    )

    def _of_values(self, image: Image.Image) -> np.ndarray:
        """Look up the class of each pixel with Pillow, because indices of numpy take 8 bytes for each."""
        return np.array(image.point(self.table.astype(np.uint8).tolist()))

    def _of_colors(self, pixels: np.ndarray, path: Stored, classes_of: Mapping[int, int]) -> np.ndarray:
        if pixels.shape[0] * pixels.shape[1] > _BLOCK:  # the packed colors take 24 times as much memory
            blocks = np.array_split(pixels, -(-pixels.shape[0] * pixels.shape[1] // _BLOCK))
            return np.concatenate([self._of_colors(block, path, classes_of) for block in blocks if len(block)])
        packed = pixels.astype(np.int64) @ np.array([65536, 256, 1])
        values, inverse = np.unique(packed, return_inverse=True)
        classes = np.array([classes_of.get(int(value), -1) for value in values])
        if (classes < 0).any():
            value = int(values[classes < 0][0])
            color = f"{value >> 16} {value >> 8 & 255} {value & 255}"
            raise DataError(
                f"{path}: contains the color {color}, which the class file does not list; add a line for it"
            )
        labels: np.ndarray = classes.astype(np.uint8)[inverse].reshape(packed.shape)
        return labels


@dataclass(frozen=True, kw_only=True)
class MaskedImages:
    """Images and masks of a split, opened on access."""

    names: tuple[str, ...]
    images: tuple[Stored, ...]
    masks: tuple[Stored, ...]
    labels: Labels

    def __len__(self) -> int:
        return len(self.names)

    def take(self, indices: np.ndarray) -> MaskedImages:
        """Return some of the images."""
        return MaskedImages(
            names=tuple(self.names[i] for i in indices),
            images=tuple(self.images[i] for i in indices),
            masks=tuple(self.masks[i] for i in indices),
            labels=self.labels,
        )

    def joined(self, other: MaskedImages) -> MaskedImages:
        """Return the images of both, with the labels of this one."""
        return MaskedImages(
            names=self.names + other.names,
            images=self.images + other.images,
            masks=self.masks + other.masks,
            labels=self.labels,
        )

    def image(self, index: int) -> Image.Image:
        """Return an image in mode RGB.

        Raises:
            DataError: it cannot be read.
        """
        return read_image(self.images[index])

    def label(self, index: int) -> np.ndarray:
        """Return the label map (H, W) uint8 of an image.

        Raises:
            DataError: the mask cannot be read, or has another size than its image.
        """
        return self.labels.read(self.masks[index])
