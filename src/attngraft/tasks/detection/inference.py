"""Detections of an image in its original size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attngraft.models.dense import masks_to_rle
from attngraft.tasks.detection.objects import RunLengths


@dataclass(frozen=True, kw_only=True, eq=False)
class Detected:
    """The D detections of an image, by descending scores, in pixels of the original image."""

    scores: np.ndarray  #: (D,) float32
    labels: np.ndarray  #: (D,) class from 0
    boxes: np.ndarray  #: (D, 4) float64, left, top, right, bottom
    masks: Sequence[RunLengths] | None  #: None: the detector has no masks

    def __len__(self) -> int:
        return len(self.scores)


def detect(model: nn.Module, image: Tensor, size: tuple[int, int]) -> Detected:
    """Return the detections of an image, which is the only one of its batch: no padding changes them.

    Args:
        model: the detector, in evaluation mode.
        image: (C, H, W), resized and normalized.
        size: height and width of the original image.
    """
    found: dict[str, Tensor] = model([image])[0]
    order = found["scores"].argsort(descending=True, stable=True)
    height, width = image.shape[-2:]
    scale = torch.tensor([size[1] / width, size[0] / height] * 2, dtype=torch.float64)
    boxes = found["boxes"][order].cpu().double() * scale
    boxes[:, 0::2].clamp_(0, size[1])
    boxes[:, 1::2].clamp_(0, size[0])
    masks: Any = None
    if "masks" in found:
        masks = masks_to_rle(found["masks"][order].cpu().float(), boxes.float(), size)
    return Detected(
        scores=found["scores"][order].cpu().float().numpy(),
        labels=found["labels"][order].cpu().numpy() - 1,
        boxes=boxes.numpy(),
        masks=masks,
    )
