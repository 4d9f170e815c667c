"""Randomness as a function of a key, whoever asks: never of the worker, the process, or what was drawn before."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_WORD = 2**64


@contextmanager
def seeded(stream: str, *key: int) -> Iterator[None]:
    """Python's, numpy's and torch's (CPU) global generators, seeded inside and put back behind; for library code that
    draws from them.

    `stream` keeps the draws of different purposes apart where their keys are the same numbers. Not for several threads.
    """
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    words = np.random.SeedSequence([zlib.crc32(stream.encode()), *(part % _WORD for part in key)]).generate_state(4)
    random.seed(words.tobytes())
    np.random.seed(words)
    torch.default_generator.manual_seed(
        int(words[0]) << 32 | int(words[1])
    )  # torch.manual_seed would reseed devices too
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def generator(seed: int, epoch: int, index: int) -> np.random.Generator:
    """A generator of one example's own, cheap to make (a counter-based one: nothing is mixed or warmed up).

    Index -1 is nobody's: for draws over all examples.
    """
    words = np.array([seed % _WORD, epoch, 0, 0, 0, index % _WORD], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=words[:2], counter=words[2:]))
