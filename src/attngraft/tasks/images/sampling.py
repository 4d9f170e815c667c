"""Which images an epoch takes where classes are of unequal size."""

from __future__ import annotations

from typing import Literal

import numpy as np

#: `balanced`: each class as often as any other; `sqrt`: each in proportion to the root of its number of images
Sampling = Literal["balanced", "sqrt"]

_POWERS = {"balanced": 0.0, "sqrt": 0.5}


def draw_by_class(
    labels: np.ndarray, *, size: int, sampling: Sampling, stream: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """`size` places of images, classes in the shares that `sampling` says, in random order.

    A class of n images has the share n^p of them all, p = 0 or 1/2. Within a class every image is taken equally often,
    or once more: it is gone through in random order, again and again.

    Returns:
        (size,) places, and (size,) how many times the image at this place was taken before.
    """
    found, counts = np.unique(labels, return_counts=True)
    weights = counts.astype(float) ** _POWERS[sampling]
    quotas = _whole(size * weights / weights.sum(), size, stream)
    places, turns = [], []
    for label, count, quota in zip(found, counts, quotas, strict=True):
        members = np.flatnonzero(labels == label)
        rounds = [stream.permutation(members) for _ in range(-(-quota // count))]
        places.append(np.concatenate([*rounds, members[:0]])[:quota])
        turns.append(np.arange(quota) // count)
    shuffle = stream.permutation(size)
    return np.concatenate(places)[shuffle], np.concatenate(turns)[shuffle]


def _whole(exact: np.ndarray, size: int, stream: np.random.Generator) -> np.ndarray:
    """Whole numbers that sum to `size`: each of `exact` rounded down, the rest drawn by what was cut off."""
    floors = np.floor(exact).astype(np.int64)
    rest = size - int(floors.sum())
    if rest:
        cut = exact - floors
        floors[stream.choice(len(exact), size=rest, replace=False, p=cut / cut.sum())] += 1
    return floors
