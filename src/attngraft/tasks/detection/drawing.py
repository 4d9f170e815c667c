"""Pictures of objects and detections."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

from attngraft.models.dense.rle import mask_api
from attngraft.tasks.detection.objects import RunLengths

_LETTERS = 100  #: of a caption; drawing takes long for more
_OPACITY = 0.45  #: of masks
_GOLDEN = 0.618034  #: step of the hue, which keeps the colors of neighboring classes apart

Color = tuple[int, int, int]


def class_color(label: int) -> Color:
    """Return the color of a class."""
    red, green, blue = colorsys.hsv_to_rgb(label * _GOLDEN % 1.0, 0.8, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


def drawn(
    image: Image.Image,
    boxes: np.ndarray,
    labels: Sequence[int] | np.ndarray,
    masks: Sequence[RunLengths] | None,
    *,
    captions: Sequence[str] | None = None,
) -> Image.Image:
    """Return an RGB image with boxes and masks in the colors of their classes; boxes beside masks only with captions.

    Args:
        boxes: (G, 4), left, top, right, bottom.
        masks: of the size of the image, or None.
        captions: texts above the boxes, or None.
    """
    picture = image.convert("RGB")
    if masks:
        pixels = np.asarray(picture).copy()
        for mask, label in zip(masks, labels, strict=True):
            inside = mask_api().decode(dict(mask)).astype(bool)
            pixels[inside] = (1 - _OPACITY) * pixels[inside] + _OPACITY * np.array(class_color(int(label)))
            pixels[inside & ~ndimage.binary_erosion(inside)] = class_color(int(label))  # tells neighbors apart
        picture = Image.fromarray(pixels)
    draw = ImageDraw.Draw(picture)
    if not masks or captions is not None:
        for box, label in zip(boxes.tolist(), labels, strict=True):
            draw.rectangle(_corners(box), outline=class_color(int(label)))
    for box, label, text in zip(boxes.tolist(), labels, captions or (), strict=captions is not None):
        draw.text((box[0] + 2, max(0, box[1] - 11)), text[:_LETTERS], fill=class_color(int(label)))
    return picture


def resized(mask: RunLengths, size: tuple[int, int]) -> RunLengths:
    """Return a mask in another size (width, height), by the nearest pixels."""
    values = Image.fromarray(mask_api().decode(dict(mask))).resize(size, Image.Resampling.NEAREST)
    found: RunLengths = mask_api().encode(np.asfortranarray(values))
    return found


def _corners(box: Sequence[float]) -> tuple[float, float, float, float]:
    """Return corners in the order that Pillow requires."""
    left, top, right, bottom = box
    return left, top, max(left, right - 1), max(top, bottom - 1)
