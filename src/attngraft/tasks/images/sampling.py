"""Order of training epochs: balanced sampling of classes, and sequential reading of shards."""

from typing import Literal

import numpy as np

#: `balanced`: every class equally often; `sqrt`: in proportion to the square root of the class size
Sampling = Literal["balanced", "sqrt"]

_POWERS = {"balanced": 0.0, "sqrt": 0.5}


def draw_by_class(
    labels: np.ndarray, *, size: int, sampling: Sampling, stream: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw `size` images in random order, with the class frequencies of `sampling`.

    A class of n images gets a share in proportion to n^p, p = 0 or 1/2. Within a class the images are drawn in repeated
    random permutations, so their counts differ by at most one.

    Returns:
        (size,) indices of images, and (size,) how often each was drawn before.
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
    """Return integers that sum to `size`: `exact` rounded down, plus 1 at random by the fractional parts."""
    floors = np.floor(exact).astype(np.int64)
    rest = size - int(floors.sum())
    if rest:
        cut = exact - floors
        floors[stream.choice(len(exact), size=rest, replace=False, p=cut / cut.sum())] += 1
    return floors


def shard_order(shard_index: np.ndarray, *, buffer: int, stream: np.random.Generator) -> np.ndarray:
    """Return the indices of all images, shard after shard in random order, each moved by up to `buffer` positions.

    This is a stream with a shuffle buffer: each shard is read once from start to end. Unlike a stream, the order is known
    in advance, so a run that resumes within an epoch continues at its step without reading earlier images.

    Args:
        shard_index: (N, 2) shard and position in it of each image (`Images.shard_index`).
        buffer: largest move of an image.
        stream: source of randomness.

    Returns:
        (N,) int64.
    """
    shards, which = np.unique(shard_index[:, 0], return_inverse=True)
    turn = stream.permutation(len(shards))[which.reshape(-1)]
    sequential = np.lexsort((shard_index[:, 1], turn))
    noise = stream.random(len(shard_index)) * buffer
    return sequential[np.argsort(np.arange(len(shard_index)) + noise, kind="stable")]
