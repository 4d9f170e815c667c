"""Point clouds, and what makes one unusable."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from attngraft.errors import DataError
from attngraft.suggest import shortened

Place = Callable[[int], str]  #: location of a point, for messages: `chair/1.txt: line 7`

quiet = np.errstate(over="ignore", invalid="ignore")  #: without warnings on numbers that are refused afterwards

_LOOKED_AT = 10_000  #: points whose normals are checked
_PARTS = 1000  #: most parts that a label can number; a model returns a number for each part at each point


@dataclass(frozen=True)
class Cloud:
    """N points, with their normals and parts if the data have them."""

    name: str
    points: np.ndarray  #: (N, 3) float32
    normals: np.ndarray | None  #: (N, 3) float32
    parts: np.ndarray | None  #: (N,) int64
    category: int  #: the class of the whole cloud


def numbered(where: object) -> Place:
    """Return the function that gives the location of a point as its number."""
    return lambda index: f"{where}: point {index} (from 0)"


def cloud_columns(values: np.ndarray, place: Place) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Return points, normals and parts.

    Args:
        values: (N, 3), (N, 4), (N, 6) or (N, 7) numbers: x, y, z, then the normal if there are 6 or 7 columns, then the part
            if there are 4 or 7.
        place: location of a point, for messages.

    Raises:
        DataError: a number is not finite, or a part is not a whole number.
    """
    points = finite(values[:, :3], place)
    normals = finite(values[:, 3:6], place) if values.shape[1] >= 6 else None
    if values.shape[1] not in (4, 7):
        return points, normals, None
    found = values[:, -1]
    whole = (found >= 0) & (found < _PARTS) & (found == np.floor(found))
    if not whole.all():
        first = int(np.argmin(whole))
        raise DataError(
            f"{place(first)}: the part {found[first]:g} is not a whole number from 0 to {_PARTS - 1:,}; "
            "number the parts from 0"
        )
    return points, normals, found.astype(np.int64)


@quiet
def finite(values: np.ndarray, place: Place) -> np.ndarray:
    """Return the rows as float32; raises a DataError that names the first row with NaN or infinity."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    good = np.isfinite(values).all(axis=1)
    if not good.all():
        first = int(np.argmin(good))
        listed = ", ".join(f"{value:g}" for value in values[first])
        raise DataError(
            f"{place(first)}: {listed} has a number that is not finite in float32; correct or remove this point"
        )
    return values


def check_cloud(
    cloud: Cloud, *, where: str, place: Place, least: int = 1, parts: Collection[int] | None = None
) -> None:
    """Check that a cloud can be used.

    Args:
        cloud: the cloud.
        where: its location, for messages.
        place: location of one of its points, for messages.
        least: smallest number of points.
        parts: the parts of its category; None: not checked.

    Raises:
        DataError: there are too few points, all are equal, a number is not finite, or a part is not one of `parts`.
    """
    count = len(cloud.points)
    if count < max(1, least):
        raise DataError(
            f"{where}: has {count:,} points, but {max(1, least):,} are needed; use fewer points, or remove this cloud"
        )
    for values in (cloud.points, cloud.normals):
        if values is not None:
            finite(values, place)
    if (cloud.points == cloud.points[0]).all():
        raise DataError(f"{where}: all {count:,} points are equal in float32; center or remove this cloud")
    if parts is not None and cloud.parts is not None:
        known = np.isin(cloud.parts, list(parts))
        if not known.all():
            first = int(np.argmin(known))
            raise DataError(
                f"{place(first)}: the part {cloud.parts[first]} is none of its category's ({shortened(sorted(parts), 8)}); "
                "correct the label"
            )


def are_normals(vectors: np.ndarray) -> bool:
    """Return whether most of the vectors (N, 3), or of an even sample of them, have the length 1; colors have not."""
    lengths = np.linalg.norm(vectors[:: max(1, len(vectors) // _LOOKED_AT)], axis=1)
    return bool(np.mean(np.abs(lengths - 1) < 0.1) > 0.5)


def normalize(points: np.ndarray) -> np.ndarray:
    """Return (N, 3) points minus their mean, divided by the largest norm: in the unit ball."""
    centered = points.astype(np.float64)
    centered -= centered.mean(axis=0)
    largest = np.sqrt((centered**2).sum(axis=1).max())
    return (centered / (largest or 1.0)).astype(np.float32)
