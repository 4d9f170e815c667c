"""Masks as compressed run lengths of COCO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attngraft.models.dense.rle import mask_api
from attngraft.tasks.detection.objects import RunLengths
from attngraft.tasks.images.coco import polygon_points, run_lengths

_OUTLINE = 2**22  #: largest number of pixels of the outlines of an object, which are stored while it is drawn


def of_annotation(given: Any, size: tuple[int, int]) -> RunLengths:
    """Return the mask of a `segmentation` of COCO: polygons, or run lengths; `size` is (width, height).

    Raises:
        ValueError: a polygon has less than three points or lies far outside of the image, or run lengths do not fit it.
        LookupError, TypeError: the mask has another form.
    """
    if isinstance(given, Mapping):
        return of_lengths(run_lengths(given, size), size)
    if not isinstance(given, list):
        raise TypeError("a mask must be a list of polygons, or an object with counts")
    return of_polygons(given, size)


def of_polygons(polygons: Sequence[Any], size: tuple[int, int]) -> RunLengths:
    """Return the union of polygons x, y, x, y, ... in pixels; see `of_annotation`."""
    width, height = size
    outline, lists = 0.0, []
    for polygon in polygons:
        points = polygon_points(polygon)
        if len(points) < 3:
            raise ValueError(f"a polygon has {len(points)} points, but needs 3")
        (left, top), (right, bottom) = points.min(axis=0), points.max(axis=0)
        if left < -width or top < -height or right > 2 * width or bottom > 2 * height:
            raise ValueError("a polygon lies far outside of the image")
        longest = max(right - left, bottom - top)
        if len(points) * longest > _OUTLINE:  # an upper bound
            longest = np.abs(np.diff(points, axis=0, append=points[:1])).max(axis=1).mean()
        outline += len(points) * longest
        lists.append(points.reshape(-1).tolist())
    if outline > _OUTLINE:
        raise ValueError(f"an outline of {outline:,.0f} pixels is too long; use run lengths")
    found: list[RunLengths] = mask_api().frPyObjects(lists, height, width)
    return found[0] if len(found) == 1 else mask_api().merge(found)


def of_lengths(lengths: Sequence[int], size: tuple[int, int]) -> RunLengths:
    """Return the mask of uncompressed run lengths, which are not checked; `size` is (width, height)."""
    width, height = size
    lengths = lengths[: len(lengths) - (lengths[-1] == 0)]  # equal masks have equal text
    found: RunLengths = mask_api().frPyObjects({"size": [height, width], "counts": list(lengths)}, height, width)
    return found


def of_label_map(labels: np.ndarray) -> list[RunLengths]:
    """Return the mask of each value but 0 of a map (H, W), in ascending order."""
    height, width = labels.shape
    flat = labels.T.reshape(-1)
    starts = np.flatnonzero(np.append(True, flat[1:] != flat[:-1]))  # of the runs, down the columns
    values, ends = flat[starts], np.append(starts[1:], flat.size)
    found = []
    order = np.argsort(values, kind="stable")
    for runs in np.split(order, np.flatnonzero(np.diff(values[order])) + 1):
        if len(runs) and values[runs[0]] != 0:
            edges = np.stack([starts[runs], ends[runs]], axis=1).reshape(-1)
            found.append(of_lengths(np.diff(edges, prepend=0, append=flat.size).tolist(), (width, height)))
    return found


def decoded(masks: Sequence[RunLengths], size: tuple[int, int]) -> np.ndarray:
    """Return masks as (G, H, W) uint8; `size` is (width, height)."""
    if not masks:
        return np.zeros((0, *size[::-1]), dtype=np.uint8)
    return np.ascontiguousarray(mask_api().decode(list(masks)).transpose(2, 0, 1))


def boxes_of(masks: Sequence[RunLengths]) -> np.ndarray:
    """Return the smallest boxes (G, 4) of masks as left, top, right, bottom."""
    if not masks:
        return np.zeros((0, 4))
    found = np.asarray(mask_api().toBbox(list(masks)), dtype=np.float64).reshape(-1, 4)
    found[:, 2:] += found[:, :2]
    return found


def areas_of(masks: Sequence[RunLengths]) -> np.ndarray:
    """Return the number of pixels (G,) of masks."""
    return np.asarray(mask_api().area(list(masks)), dtype=np.float64) if masks else np.zeros(0)
