"""Detections of an image in its original size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
        image: (C, h, w), resized and normalized.
        size: height and width of the original image.
    """
    return in_pixels(model([image])[0], (image.shape[-2], image.shape[-1]), size)


def in_pixels(found: Mapping[str, Tensor], resized: tuple[int, int], size: tuple[int, int]) -> Detected:
    """Return a detector's output for an image in pixels of the original.

    Args:
        found: output of `models.dense.Detector`.
        resized: height and width of the image that the detector was given.
        size: those of the original image.
    """
    order = found["scores"].argsort(descending=True, stable=True)
    scale = torch.tensor([size[1] / resized[1], size[0] / resized[0]] * 2, dtype=torch.float64)
    boxes = found["boxes"][order].detach().cpu().double() * scale
    boxes[:, 0::2].clamp_(0, size[1])
    boxes[:, 1::2].clamp_(0, size[0])
    masks = None
    if "masks" in found:
        masks = masks_to_rle(found["masks"][order].detach().cpu().float(), boxes.float(), size)
    return Detected(
        scores=found["scores"][order].detach().cpu().float().numpy(),
        labels=found["labels"][order].cpu().numpy() - 1,
        boxes=boxes.numpy(),
        masks=masks,
    )
