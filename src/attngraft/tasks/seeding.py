"""Random numbers that depend only on a key, not on worker, process or earlier draws."""

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_WORD = 2**64


@contextmanager
def seeded(stream: str, *key: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and torch (CPU) within a context; restore them on exit.

    For library code that draws from the global generators. Different `stream` names give independent draws for the
    same `key`. Not thread-safe.
    """
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    words = np.random.SeedSequence([zlib.crc32(stream.encode()), *(part % _WORD for part in key)]).generate_state(4)
    random.seed(words.tobytes())
    np.random.seed(words)
    # torch.manual_seed would also reseed the devices
    torch.default_generator.manual_seed(int(words[0]) << 32 | int(words[1]))
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def generator(seed: int, epoch: int, index: int) -> np.random.Generator:
    """Return the random generator of one example; it is counter-based and therefore cheap to construct.

    Index -1 is reserved for draws over all examples.
    """
    words = np.array([seed % _WORD, epoch, 0, 0, 0, index % _WORD], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=words[:2], counter=words[2:]))
