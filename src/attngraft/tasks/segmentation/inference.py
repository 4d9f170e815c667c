"""Class probabilities of images of any size: whole or in windows, at several scales, mirrored."""

from collections.abc import Callable, Iterator

import torch.nn.functional as F
from torch import Tensor

from attngraft.models.dense import padded_size
from attngraft.tasks.segmentation.config import InferenceConfig

Model = Callable[[Tensor], Tensor]  #: images (B, C, h, w) -> logits (B, K, h', w')


def predict_labels(
    model: Model,
    image: Tensor,
    config: InferenceConfig,
    *,
    window: tuple[int, int],
    size: tuple[int, int] | None = None,
) -> Tensor:
    """Return the predicted label map (H, W) of an image.

    With several scales or mirroring, probabilities are averaged at the size of the result; otherwise the class with the
    largest upsampled logit is predicted.

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
        logits = _logits(model, view.flip(3) if flip else view, config, window)
        logits = logits.flip(3) if flip else logits
        large = _resized(logits.float(), target)
        if len(views) == 1:
            return large[0].argmax(0)
        found = large.softmax(1)
        total = found if total is None else total.add_(found)
    if total is None:
        raise ValueError("config.scales is empty")
    return total[0].argmax(0)


def _logits(model: Model, image: Tensor, config: InferenceConfig, window: tuple[int, int]) -> Tensor:
    """Return logits (1, K, h, w) of an image (1, C, H, W): of the whole, or summed over windows and divided by counts."""
    height, width = image.shape[-2:]
    rows, columns = padded_size((height, width) if config.mode == "whole" else window)
    padded = F.pad(image, (0, max(0, columns - width), 0, max(0, rows - height)))
    if config.mode == "whole":
        logits = model(padded)
        return logits if padded.shape == image.shape else _resized(logits, [rows, columns])[:, :, :height, :width]
    total: Tensor | None = None
    counts = padded.new_zeros(padded.shape[-2:])
    for top in _starts(padded.shape[2], rows, config.stride):
        for left in _starts(padded.shape[3], columns, config.stride):
            logits = _resized(model(padded[:, :, top : top + rows, left : left + columns]), [rows, columns])
            if total is None:
                total = logits.new_zeros(1, logits.shape[1], *padded.shape[-2:])
            total[:, :, top : top + rows, left : left + columns] += logits
            counts[top : top + rows, left : left + columns] += 1
    if total is None:
        raise ValueError("the image is empty")
    return (total / counts)[:, :, :height, :width]


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
