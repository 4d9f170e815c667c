"""An epoch that reads large files from one end to the other, for disks and networks that are slow at anything else."""

from __future__ import annotations

import numpy as np


def shelf_order(shelf: np.ndarray, *, buffer: int, stream: np.random.Generator) -> np.ndarray:
    """Indices of all images, file after file in random order, each moved by up to `buffer` places.

    As a stream with a shuffle buffer does it, an image is taken up to `buffer` places before or after its turn, so that
    the files are read in one sweep. Unlike there, the order is known beforehand: a run that goes on in mid-epoch takes it
    up at the step where it stood, without reading what was before.

    Args:
        shelf: (N, 2) where each image lies: file, place in it (`Images.shelf`).
        buffer: how far images move, and how many of them lie between the two ends of what is read at a time.
        stream: what is drawn from.

    Returns:
        (N,) int64.
    """
    files, which = np.unique(shelf[:, 0], return_inverse=True)
    turn = stream.permutation(len(files))[which.reshape(-1)]
    swept = np.lexsort((shelf[:, 1], turn))
    return swept[np.argsort(np.arange(len(shelf)) + stream.random(len(shelf)) * buffer, kind="stable")]
