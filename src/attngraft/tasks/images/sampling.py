"""Order of examples in a training epoch: class-balanced sampling, and sequential reading of shards."""

from typing import Literal

import numpy as np

#: class frequencies; `balanced`: all equal; `sqrt`: proportional to the square root of the class size
Sampling = Literal["balanced", "sqrt"]

_POWERS = {"balanced": 0.0, "sqrt": 0.5}


def draw_by_class(
    labels: np.ndarray, *, size: int, sampling: Sampling, stream: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw `size` images in random order, with the class frequencies of `sampling`.

    The frequency of a class of n images is proportional to n^p, with p = 0 (`balanced`) or 1/2 (`sqrt`). Images of a class
    are drawn in repeated random permutations, so their counts differ by at most one.

    Returns:
        Indices of the images (size,), and the number of times that each was drawn before (size,).
    """
    classes, counts = np.unique(labels, return_counts=True)
    weights = counts.astype(float) ** _POWERS[sampling]
    quotas = _round_to_sum(size * weights / weights.sum(), size, stream)
    indices, turns = [], []
    for label, count, quota in zip(classes, counts, quotas, strict=True):
        members = np.flatnonzero(labels == label)
        rounds = [stream.permutation(members) for _ in range(-(-quota // count))]
        indices.append(np.concatenate([*rounds, members[:0]])[:quota])
        turns.append(np.arange(quota) // count)
    shuffle = stream.permutation(size)
    return np.concatenate(indices)[shuffle], np.concatenate(turns)[shuffle]


def _round_to_sum(exact: np.ndarray, size: int, stream: np.random.Generator) -> np.ndarray:
    """Round to integers with sum `size`: round down, then add 1 to random entries, by fractional part."""
    floors = np.floor(exact).astype(np.int64)
    rest = size - int(floors.sum())
    if rest:
        cut = exact - floors
        floors[stream.choice(len(exact), size=rest, replace=False, p=cut / cut.sum())] += 1
    return floors


def shard_order(shard_index: np.ndarray, *, buffer: int, stream: np.random.Generator) -> np.ndarray:
    """Return the indices of all images: shards in random order, images moved by up to `buffer` positions.

    This corresponds to streaming with a shuffle buffer: each shard is read once, from start to end. Unlike with a stream,
    the order is known in advance, so a run that resumes within an epoch does not read the images of earlier steps.

    Args:
        shard_index: shard of each image and its position in the shard, (N, 2); see `Images.shard_index`.
        buffer: largest number of positions that an image moves.
        stream: random number generator.

    Returns:
        (N,) int64.
    """
    shards, which = np.unique(shard_index[:, 0], return_inverse=True)
    turn = stream.permutation(len(shards))[which.reshape(-1)]
    sequential = np.lexsort((shard_index[:, 1], turn))
    noise = stream.random(len(shard_index)) * buffer
    return sequential[np.argsort(np.arange(len(shard_index)) + noise, kind="stable")]
