"""Values of a vector's weights and inputs: pure functions of a name and a shape."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np


def _normal(text: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw standard-normal numbers, seeded by the first eight bytes of the text's SHA-256."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    return np.random.default_rng(seed).standard_normal(shape)


def weight(key: str, shape: Sequence[int]) -> np.ndarray:
    """Return the value of a state dict's `key`: float32, except for batch counters."""
    shape = tuple(int(size) for size in shape)
    if key.endswith("num_batches_tracked"):
        return np.zeros(shape, dtype=np.int64)
    normal = _normal(key, shape)
    if key.endswith("running_var"):
        value = 1.0 + 0.1 * np.abs(normal)
    elif len(shape) >= 2:
        value = normal / math.sqrt(math.prod(shape[1:]))
    elif key.endswith("weight"):
        value = 1.0 + 0.1 * normal
    else:
        value = 0.1 * normal
    return value.astype(np.float32)


def input_value(name: str, shape: Sequence[int]) -> np.ndarray:
    """Return the standard-normal float32 input `name`, whose seed also depends on the shape."""
    shape = tuple(int(size) for size in shape)
    return _normal(f"input:{name}:{shape}", shape).astype(np.float32)
