"""Random streams of a run: every draw is a function of the run's seed and the purpose of the draw.

Streams are independent because each has its own seed, hashed from (seed, purpose, ...). No state is carried from one
step to the next, so a run can start at any step, with any number of workers. (For single examples: tasks/seeding.py.)
"""

import hashlib
import random

import numpy as np
import torch


def stream_seed(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed for one purpose: `stream_seed(0, "step", epoch, step, rank)`."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def reseed(seed: int, device: torch.device) -> None:
    """Seed the global generators of python, numpy and torch (CPU and `device`).

    Does not use `torch.manual_seed`, which formats a traceback at every call until CUDA is initialized.
    """
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def epoch_order(seed: int, epoch: int, length: int) -> np.ndarray:
    """Return the order of the training examples in `epoch`: a random permutation of range(length)."""
    return np.random.default_rng(stream_seed(seed, "order", epoch)).permutation(length)
