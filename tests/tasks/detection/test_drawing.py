"""Captions, and masks in other sizes."""

from __future__ import annotations

import numpy as np
from PIL import Image

from attngraft.models.dense.rle import mask_api
from attngraft.tasks.detection.drawing import drawn, resized


def test_long_captions_are_cut() -> None:
    image = Image.new("RGB", (40, 40))
    boxes, labels = np.array([[5.0, 15, 30, 30]]), np.zeros(1, dtype=int)
    pictures = [drawn(image, boxes, labels, None, captions=[text]) for text in ("x" * 100_000, "x" * 100)]
    assert np.array_equal(*map(np.asarray, pictures))


def test_masks_in_another_size() -> None:
    mask = np.zeros((8, 12), dtype=np.uint8)
    mask[2:6, 4:8] = 1
    small = resized(mask_api().encode(np.asfortranarray(mask)), (6, 4))
    assert np.array_equal(mask_api().decode(dict(small)), mask[::2, ::2])
