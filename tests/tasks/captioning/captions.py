"""Captions for tests: of Flickr8k, and random ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from attngraft.tasks.captioning.ptb import tokenize


def flickr8k(shared: Path, part: str) -> list[list[list[str]]]:
    """The tokens of each image's five captions."""
    with (shared / "data" / "flickr8k" / f"captions_{part}.jsonl").open(encoding="utf-8") as lines:
        return [[tokenize(caption) for caption in json.loads(line)["captions"]] for line in lines]


def random_captions(count: int, *, seed: int = 0, words: int = 30) -> list[list[int]]:
    """Captions of 0 to 12 token ids, small ones more often."""
    random = np.random.default_rng(seed)
    return [(random.random(random.integers(13)) ** 2 * words).astype(int).tolist() for _ in range(count)]


def random_references(images: int, *, seed: int = 1) -> list[list[list[int]]]:
    """One to five captions for each image."""
    random = np.random.default_rng(seed)
    return [random_captions(int(random.integers(1, 6)), seed=seed + index) for index in range(images)]
