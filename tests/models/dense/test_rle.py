"""Run-length encodings: equal to torchvision's pasted masks, encoded."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.models.detection.roi_heads import paste_masks_in_image

from attngraft.errors import ConfigError
from attngraft.models.dense import masks_to_rle

SIZE = (50, 70)


def detections(count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Smooth masks, and boxes of every size, also without area, on the border and all of the image."""
    torch.manual_seed(seed)
    low = torch.rand(count, 1, 4, 4)
    masks = torch.nn.functional.interpolate(low, (28, 28), mode="bilinear")
    ends = torch.rand(count, 2, 2) * torch.tensor([SIZE[1], SIZE[0]]) * 1.4
    boxes = torch.cat([ends.amin(dim=1), ends.amax(dim=1)], dim=1)
    boxes = boxes.minimum(torch.tensor([SIZE[1], SIZE[0]] * 2))
    boxes[0], boxes[1], boxes[2] = torch.tensor([[0, 0, 70, 50], [70, 50, 70, 50], [12.4, 3.2, 12.9, 3.9]])
    return masks, boxes


@pytest.mark.parametrize("package", ["faster_coco_eval.core.mask", "pycocotools.mask"])
@pytest.mark.parametrize("threshold", [0.5, 0.3])
def test_they_are_those_of_pasted_masks(package: str, threshold: float) -> None:
    encode = pytest.importorskip(package).encode
    for seed in range(5):
        masks, boxes = detections(30, seed=seed)
        planes = paste_masks_in_image(masks, boxes, SIZE)[:, 0] > threshold
        expected = [encode(np.asfortranarray(plane.numpy().astype(np.uint8))) for plane in planes]
        assert masks_to_rle(masks, boxes, SIZE, threshold) == expected


def test_no_detections() -> None:
    pytest.importorskip("faster_coco_eval")
    assert masks_to_rle(torch.zeros(0, 1, 28, 28), torch.zeros(0, 4), SIZE) == []


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faster_coco_eval.core.mask", None)
    with pytest.raises(ConfigError, match=r'pip install "attngraft\[detection\]"'):
        masks_to_rle(torch.zeros(0, 1, 28, 28), torch.zeros(0, 4), SIZE)
