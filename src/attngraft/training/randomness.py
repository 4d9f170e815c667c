"""Every random number of a run is a function of the run's seed and of the place where it is drawn.

Streams are independent because each has its own seed, hashed from (seed, purpose, ...). Nothing is carried from one
step to the next, so a run can start at any step, with any number of workers. (For single examples: tasks/seeding.py.)
"""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def stream_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose: `stream_seed(0, "step", epoch, step, rank)`."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def reseed(seed: int, device: torch.device) -> None:
    """Start python's, numpy's and torch's global generators, the CPU's and that of `device`, afresh.

    `torch.manual_seed` would do for torch, but where CUDA is not in use yet it formats a traceback at every call.
    """
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def epoch_order(seed: int, epoch: int, length: int) -> np.ndarray:
    """The order in which the `length` training examples are seen in `epoch`: a permutation."""
    return np.random.default_rng(stream_seed(seed, "order", epoch)).permutation(length)
