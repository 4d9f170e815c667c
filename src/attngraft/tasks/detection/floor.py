"""Instance masks without training, beside which detectors of one class are reported.

Pixels are split in two by Otsu's threshold of their brightness; the connected regions of the smaller part are the objects,
and their solidity, area over area of the convex hull, is the score. On microscope images, short training hardly beats it.

Source: N. Otsu, "A threshold selection method from gray-level histograms", 1979.
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage
from scipy.spatial import ConvexHull

from attngraft.models.dense.rle import mask_api
from attngraft.tasks.detection.objects import RunLengths

DESCRIPTION = "Otsu's threshold and connected regions, without training"
_SMALLEST = 10  #: pixels of the smallest region


def threshold_regions(image: np.ndarray, *, largest: int) -> tuple[np.ndarray, np.ndarray, list[RunLengths]]:
    """Return scores (D,), boxes (D, 4) and masks of at most `largest` regions, by descending scores.

    Args:
        image: (H, W) or (C, H, W) uint8.
    """
    gray = np.asarray(image, dtype=float)
    gray = gray if gray.ndim == 2 else gray.mean(axis=0)
    above = gray > otsu_threshold(gray)
    regions, _ = ndimage.label(above if above.mean() <= 0.5 else ~above)
    found = []
    for index, slices in enumerate(ndimage.find_objects(regions), start=1):
        own = regions[slices] == index
        if (area := int(own.sum())) >= _SMALLEST:
            found.append((area / _hull_area(own), index, slices))
    found.sort(key=lambda each: -each[0])
    found = found[:largest]
    boxes = [(columns.start, rows.start, columns.stop, rows.stop) for _, _, (rows, columns) in found]
    masks = [mask_api().encode(np.asfortranarray(regions == index, dtype=np.uint8)) for _, index, _ in found]
    return np.array([score for score, _, _ in found]), np.array(boxes, dtype=float).reshape(-1, 4), masks


def otsu_threshold(gray: np.ndarray) -> float:
    """Return the threshold with the largest variance between the means of the two sides, for values 0 to 255."""
    counts = np.bincount(gray.astype(np.uint8).reshape(-1), minlength=256).astype(float)
    below, total = np.cumsum(counts), np.cumsum(counts * np.arange(256))
    above = below[-1] - below
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = below * above * (total / below - (total[-1] - total) / above) ** 2
    return float(np.nanargmax(np.where(below * above > 0, variance, 0)))


def _hull_area(region: np.ndarray) -> float:
    """Return the area of the convex hull of a region's pixels, as squares."""
    rows, columns = np.nonzero(region)
    corners = np.concatenate([np.stack([rows + down, columns + right], axis=1) for down in (0, 1) for right in (0, 1)])
    return float(ConvexHull(corners).volume)
