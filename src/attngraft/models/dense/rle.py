"""Masks of detections as run-length encodings."""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor
from torchvision.models.detection.roi_heads import expand_boxes, expand_masks

from attngraft.errors import ConfigError


def mask_api() -> Any:
    """Return the module of faster-coco-eval that encodes masks.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module("faster_coco_eval.core.mask")
    except ImportError:
        raise ConfigError('detection: requires faster-coco-eval; run pip install "attngraft[detection]"') from None


def masks_to_rle(
    probabilities: Tensor, boxes: Tensor, size: Sequence[int], threshold: float = 0.5
) -> list[dict[str, Any]]:
    """Return the masks of the given size as COCO run-length encodings, without a plane of floats per mask.

    Equal to torchvision's `paste_masks_in_image(probabilities, boxes, size) > threshold`, encoded.

    Args:
        probabilities: of a mask inside of its box (D, 1, M, M).
        boxes: x1, y1, x2, y2 in pixels (D, 4).
        size: height and width of the image.
        threshold: probability above which a pixel belongs to the mask.

    Raises:
        ConfigError: faster-coco-eval is not installed.
    """
    encode = mask_api().encode
    height, width = (int(side) for side in size)
    plane = np.zeros((height, width), dtype=np.uint8, order="F")
    padded, scale = expand_masks(probabilities.detach().float().cpu(), 1)
    found = []
    for mask, box in zip(padded, expand_boxes(boxes.detach().float().cpu(), scale).long().tolist(), strict=True):
        x1, y1, x2, y2 = box
        resized = F.interpolate(mask[None], (max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)), mode="bilinear")[0, 0]
        rows, columns = slice(max(y1, 0), min(y2 + 1, height)), slice(max(x1, 0), min(x2 + 1, width))
        inside = resized[rows.start - y1 : rows.stop - y1, columns.start - x1 : columns.stop - x1]
        plane[rows, columns] = (inside > threshold).numpy()
        found.append(encode(plane))
        plane[rows, columns] = 0
    return found
