"""Captions."""

from __future__ import annotations

import numpy as np
from PIL import Image

from attngraft.tasks.detection.drawing import drawn


def test_long_captions_are_cut() -> None:
    image = Image.new("RGB", (40, 40))
    boxes, labels = np.array([[5.0, 15, 30, 30]]), np.zeros(1, dtype=int)
    pictures = [drawn(image, boxes, labels, None, captions=[text]) for text in ("x" * 100_000, "x" * 100)]
    assert np.array_equal(*map(np.asarray, pictures))
