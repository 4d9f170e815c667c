"""Runs to put under suites: random weights, and little folders of images as their data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.export.runs import VIT, make_run
from tests.tasks.images.datasets import make_folder

NAMES = ("cat", "dog", "owl")
TREE = {"train": dict.fromkeys(NAMES, 4), "val": {"cat": 5, "dog": 4, "owl": 3}}


def run_with_images(folder: Path, graft: str | None = None, **more: Any) -> Path:
    """A run of three classes, with twelve images for validation."""
    data = folder.parent / "images"
    if not data.exists():
        make_folder(data, TREE, size=(20, 16))
    task = {"name": "classification", "data": {"source": str(data)}}
    train = {"batch_size": 4, "threads": 1}
    return make_run(folder, graft, **({"classes": NAMES, "host": VIT, "task": task, "train": train} | more))
