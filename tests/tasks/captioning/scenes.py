"""Scenes by rule: features that determine the captions, and a tiny captioner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COLORS = ("red", "green", "blue", "white", "black", "brown", "yellow")
THINGS = ("dog", "cat", "bird", "horse", "boat")
CHANNELS = len(COLORS) + len(THINGS)
HOST: dict[str, Any] = {
    "name": "attngraft:m2_transformer",
    "args": {"dim": 32, "depth": 1, "heads": 2, "hidden": 64, "slots": 4, "positions": 16, "dropout": 0.0},
}


def captions(number: int) -> list[str]:
    """Three captions of a scene."""
    color, thing = COLORS[number % len(COLORS)], THINGS[number % len(THINGS)]
    return [f"A {color} {thing} .", f"the {thing} is {color}", f"This is a {color} {thing}!"]


def features(number: int) -> np.ndarray:
    """A row for the color, one for the thing, and rows of the same thing, (2 to 4, CHANNELS)."""
    rows = np.zeros((2 + number % 3, CHANNELS), np.float32)
    rows[0, number % len(COLORS)] = 1
    rows[1:, len(COLORS) + number % len(THINGS)] = 1
    return rows


def write_scenes(folder: Path, *, train: int = 20, val: int = 9, test: int = 0, images: bool = False) -> Path:
    """Write captions, features and, if wanted, images, whose colors are random."""
    import h5py  # an extra that the oldest versions are tested without

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "images").mkdir(exist_ok=True)
    start = 0
    with h5py.File(folder / "features.h5", "w") as file:
        for part, count in {"train": train, "val": val, "test": test}.items():
            lines = []
            for number in range(start, start + count):
                lines.append(json.dumps({"file_name": f"{number}.png", "captions": captions(number)}))
                file[f"{number}.png_features"] = features(number)
                if images:
                    pixels = np.random.default_rng(number).integers(256, size=(20, 24, 3)).astype(np.uint8)
                    Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
            if count:
                (folder / f"captions_{part}.jsonl").write_text("".join(f"{line}\n" for line in lines))
            start += count
    return folder


def section(folder: Path, **fields: Any) -> dict[str, Any]:
    """A task section, with its data in `folder`."""
    if not folder.exists():
        write_scenes(folder)
    return {
        "name": "captioning",
        "data": {"source": str(folder)},
        "vocabulary": {"min_count": 1},
        "max_length": 8,
        "decoding": {"beams": 3},
        **fields,
    }
