"""Drawn images with masks in folders, and a tiny host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CLASSES = ("ground", "square", "stripe")
HOST: dict[str, Any] = {
    "name": "swin_tiny_patch4_window7_224",
    "args": {
        "embed_dim": 8,
        "depths": [1, 1, 1, 1],
        "num_heads": [1, 1, 2, 2],
        "window_size": 4,
        "drop_path_rate": 0.0,
    },
}


def drawing(index: int) -> tuple[Image.Image, Image.Image]:
    """An image of about 24 x 20 pixels, and its mask, whose first row is unlabeled."""
    random = np.random.default_rng(index)
    height, width = 20 + index % 3, 24 - index % 2
    mask = np.zeros((height, width), dtype=np.uint8)
    y, x = random.integers(3, 10, size=2)
    mask[y : y + 7, x : x + 7] = 1
    mask[:, random.integers(width - 3) :][:, :3] = 2
    pixels = np.stack([40 + 80 * mask, 200 - 60 * mask, 255 * (mask == 2)], axis=2)
    pixels = pixels + random.integers(-20, 20, pixels.shape)
    mask[0] = 255
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), Image.fromarray(mask)


def write_drawings(folder: Path, *, train: int = 24, val: int = 5, test: int = 0) -> Path:
    """Write `images` and `masks` with a folder for each split, and classes.txt."""
    number = 0
    for part, count in {"train": train, "val": val, "test": test}.items():
        for _ in range(count):
            for kind, image in zip(("images", "masks"), drawing(number), strict=True):
                path = folder / kind / part / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                image.save(path)
            number += 1
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in CLASSES))
    return folder


def section(folder: Path, **fields: Any) -> dict[str, Any]:
    """A task section, with its data in `folder`."""
    return {
        "name": "segmentation",
        "data": {"source": str(write_drawings(folder))},
        "head": "linear",
        "auxiliary": 0.0,
        "augment": {"crop": [16, 16]},
        **fields,
    }
