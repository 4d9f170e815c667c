"""Sentence pairs by rule, and a tiny host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

WORDS = (
    "one eins two zwei three drei four vier five fünf six sechs seven sieben eight acht nine neun ten zehn "
    "red rote blue blaue green grüne big große small kleine house Haus tree Baum bird Vogel"
)
ENGLISH, GERMAN = WORDS.split()[::2], WORDS.split()[1::2]
HOST = {"name": "attngraft:mt_transformer", "args": {"dim": 32, "depth": 1, "heads": 2, "hidden": 64, "positions": 40}}


def sentences(count: int, *, seed: int = 0, longest: int = 8) -> list[tuple[str, str]]:
    """Different pairs of 1 to `longest` words."""
    random, found = np.random.default_rng(seed), dict[str, str]()
    while len(found) < count:
        words = random.integers(len(ENGLISH), size=random.integers(1, longest + 1))
        english, german = (" ".join(names[word] for word in words) for names in (ENGLISH, GERMAN))
        found[f"{english.capitalize()}."] = f"{german.capitalize()}."
    return list(found.items())


def write_pairs(folder: Path, parts: dict[str, list[tuple[str, str]]]) -> Path:
    """Write `train.en`, `train.de`, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, pairs in parts.items():
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{part}.{language}").write_text(text, encoding="utf-8")
    return folder


def section(folder: Path, *, train: int = 60, val: int = 25, **fields: Any) -> dict[str, Any]:
    """A task section, with its data in `folder`."""
    pairs = sentences(train + val)
    write_pairs(folder, {"train": pairs[:train], "val": pairs[train:]})
    direction = {"source": "en", "target": "de", "vocab_size": 340, "batch_tokens": 120}
    return {
        "name": "translation",
        "data": {"source": str(folder)},
        **direction,
        "decoding": {"max_length": 12},
        **fields,
    }
