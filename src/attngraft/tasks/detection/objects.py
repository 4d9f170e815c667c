"""Annotated objects of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RunLengths = Mapping[str, Any]  #: mask as compressed run lengths of COCO: {"size": [height, width], "counts": bytes}


@dataclass(frozen=True, kw_only=True, eq=False)
class Objects:
    """The G objects of an image, in pixels of the original image."""

    boxes: np.ndarray  #: (G, 4) float64, left, top, right, bottom
    labels: np.ndarray  #: (G,) int64, class from 0
    crowd: np.ndarray  #: (G,) bool: groups of objects, which are not trained on, and ignored in the evaluation
    areas: np.ndarray  #: (G,) float64, of the annotation; decides between small, medium and large objects
    masks: Sequence[RunLengths] | None  #: one per object; None: boxes only

    def __len__(self) -> int:
        return len(self.labels)
