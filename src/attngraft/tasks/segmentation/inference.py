"""Class probabilities of images of any size: whole or in windows, at several scales, mirrored."""

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.models.dense import padded_size
from attngraft.tasks.segmentation.config import InferenceConfig

Model = Callable[[Tensor], Tensor]  #: images (B, C, h, w) -> logits (B, K, h', w')

_VALUES = 2**26  #: upsampled logits that exist at the same time, if one class after the other can be upsampled


def predict_labels(
    model: Model,
    image: Tensor,
    config: InferenceConfig,
    *,
    window: tuple[int, int],
    size: tuple[int, int] | None = None,
) -> Tensor:
    """Return the predicted label map (H, W) of an image.

    With several scales or mirroring, probabilities are averaged at the size of the result. Otherwise the class with the
    largest upsampled logit is predicted, and only some classes are upsampled at a time.

    Args:
        model: the model in evaluation mode.
        image: (C, H, W), normalized.
        config: scales, flip and windows.
        window: height and width of the windows, if `config.mode` is `slide`; rounded up to multiples of 32.
        size: height and width of the result; None: those of the image.
    """
    height, width = image.shape[-2:]
    target = list(size or (height, width))
    base = 1.0 if config.size is None else config.size / min(height, width)
    views = [(scale, flip) for scale in config.scales for flip in ((False, True) if config.flip else (False,))]
    total: Tensor | None = None
    for scale, flip in views:
        sides = [max(1, round(side * base * scale)) for side in (height, width)]
        view = image[None] if sides == [height, width] else _resized(image[None], sides).clone()
        logits, padded = _logits(model, view.flip(3) if flip else view, config, window)
        del view

        def upsampled(part: Tensor, flip: bool = flip, sides: list[int] = sides, padded: list[int] = padded) -> Tensor:
            part = part if padded == sides else _resized(part, padded)[:, :, : sides[0], : sides[1]]
            return _resized((part.flip(3) if flip else part).float(), target)

        if len(views) == 1:
            return _largest(logits, upsampled, block=max(1, _VALUES // math.prod(target)))
        found = upsampled(logits).softmax(1)
        total = found if total is None else total.add_(found)
        del logits, found
    if total is None:
        raise ValueError("config.scales is empty")
    return total[0].argmax(0)


def _largest(logits: Tensor, upsampled: Callable[[Tensor], Tensor], *, block: int) -> Tensor:
    """Return the class (H, W) with the largest upsampled logit, upsampling `block` classes at a time."""
    if logits.shape[1] <= block:
        return upsampled(logits)[0].argmax(0)
    best, labels = upsampled(logits[:, :block])[0].max(0)
    for first in range(block, logits.shape[1], block):
        value, index = upsampled(logits[:, first : first + block])[0].max(0)
        labels = torch.where(value > best, index + first, labels)
        best = torch.maximum(best, value)
    return labels


def _logits(model: Model, image: Tensor, config: InferenceConfig, window: tuple[int, int]) -> tuple[Tensor, list[int]]:
    """Return logits (1, K, h, w) of a padded image, and its size.

    Whole images have the model's logits; windows are summed at the size of the image, and divided by counts.
    """
    height, width = image.shape[-2:]
    rows, columns = padded_size((height, width) if config.mode == "whole" else window)
    padded = F.pad(image, (0, max(0, columns - width), 0, max(0, rows - height)))
    size = list(padded.shape[-2:])
    if config.mode == "whole":
        return model(padded), size
    total: Tensor | None = None
    counts = padded.new_zeros(size)
    places = [
        (top, left)
        for top in _starts(size[0], rows, config.stride)
        for left in _starts(size[1], columns, config.stride)
    ]
    for top, left in places[:2] if image.is_meta else places:  # two windows have the shapes of all
        logits = _resized(model(padded[:, :, top : top + rows, left : left + columns]), [rows, columns])
        if total is None:
            total = counts.new_zeros(1, logits.shape[1], *size)
        total[:, :, top : top + rows, left : left + columns] += logits
        counts[top : top + rows, left : left + columns] += 1
    if total is None:
        raise ValueError("the image is empty")
    return total.div_(counts), size


def _starts(length: int, window: int, stride: float) -> Iterator[int]:
    """Yield the starts of windows; the last one ends at the border."""
    step = max(1, round(window * stride))
    start = 0
    while start + window < length:
        yield start
        start += step
    yield max(0, length - window)


def _resized(x: Tensor, size: list[int]) -> Tensor:
    return x if list(x.shape[-2:]) == size else F.interpolate(x, size, mode="bilinear", align_corners=False)
