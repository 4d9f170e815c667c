"""Captioning passes the contract of every task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np

from attngraft.tasks.task import Split
from attngraft.training.recipe import Recipe
from tests.contract.task_contract import TaskContract
from tests.tasks.captioning.scenes import CHANNELS, HOST, features, section, write_scenes
from tests.tasks.captioning.transformers_hosts import write_host

TINY_VIT = {
    "name": "timm:vit_tiny_patch16_224",
    "args": {"img_size": 16, "patch_size": 8, "embed_dim": 12, "depth": 1, "num_heads": 2},
}


class TestCaptioning(TaskContract):
    """Features of different numbers of regions, from a file."""

    host: ClassVar = HOST
    graft: ClassVar = "vertical"
    lr: ClassVar = 1e-2
    steps: ClassVar = 80
    held_fixed: ClassVar = frozenset({"cider"})

    def section(self, folder: Path) -> dict[str, Any]:
        return section(folder / "scenes")

    def broken(self, folder: Path) -> Mapping[str, dict[str, Any]]:
        missing = write_scenes(folder / "missing")
        with h5py.File(missing / "features.h5", "r+") as file:
            del file["3.png_features"]
        width = write_scenes(folder / "width")
        with h5py.File(width / "features.h5", "r+") as file:
            del file["0.png_features"]
            file["0.png_features"] = np.ones((2, CHANNELS + 1), np.float32)
        layout = write_scenes(folder / "layout")
        with h5py.File(layout / "features.h5", "w") as file:
            file["features"] = np.ones((29, 2, CHANNELS), np.float32)
        return {
            "has no features of 1 of 20 images .3.png": {"data": {"source": str(missing)}},
            "has 1[23] channels, but other images 1[23]; compute all features": {"data": {"source": str(width)}},
            "contains no <image>_features; give a file of features": {"data": {"source": str(layout)}},
            "positions, got 17": {"max_length": 17},
            "no word occurs 1000 times": {"vocabulary": {"min_count": 1000}},
        }

    def raw(self, split: Split, folder: Path, *, count: int) -> list[str]:
        names = [str(folder / f"{number}.npy") for number in range(count)]
        for number, name in enumerate(names):
            np.save(name, features(20 + number))
        return names


class TestImagesEndToEnd(TaskContract):
    """Images through an image encoder that is trained too; an example is an image with all of its captions."""

    host: ClassVar = HOST
    graft: ClassVar = "horizontal"
    lr: ClassVar = 1e-2
    steps: ClassVar = 80
    overfit: ClassVar = 0.6
    held_fixed: ClassVar = frozenset({"cider"})

    def section(self, folder: Path) -> dict[str, Any]:
        if not (folder / "scenes").exists():
            write_scenes(folder / "scenes", images=True)
        return section(folder / "scenes", encoder=TINY_VIT, train_encoder=True, examples="images")

    def broken(self, folder: Path) -> Mapping[str, dict[str, Any]]:
        without = write_scenes(folder / "without")
        return {
            "0.png: no such image": {"data": {"source": str(without)}},
            "weights: nowhere.pth: no such file": {"encoder": {**TINY_VIT, "weights": "nowhere.pth"}},
            "cannot be combined with encoder": {"features": "features.h5"},
        }

    def raw(self, split: Split, folder: Path, *, count: int) -> list[str]:
        return [str(path) for path in split.images.images[:count]]  # type: ignore[attr-defined]


class TestTransformers(TaskContract):
    """Images through ViT and BERT of transformers, with a tokenizer of its own."""

    host: ClassVar[Mapping[str, Any]] = {}
    graft: ClassVar = "horizontal@decoder"
    lr: ClassVar = 1e-2
    overfit: ClassVar = 0.6
    held_fixed: ClassVar = frozenset({"cider"})

    def recipe(self, folder: Path, **sections: Any) -> Recipe:
        if not (folder / "host").exists():
            write_host(folder / "host")
        return super().recipe(folder, **{"host": {"name": f"hf:{folder / 'host'}"}, **sections})

    def section(self, folder: Path) -> dict[str, Any]:
        if not (folder / "scenes").exists():
            write_scenes(folder / "scenes", images=True)
        return section(folder / "scenes", examples="images", max_length=9)

    def broken(self, folder: Path) -> Mapping[str, dict[str, Any]]:
        return {
            "0.png: no such image": {"data": {"source": str(write_scenes(folder / "without"))}},
            "positions, got 21": {"max_length": 21},
        }

    def raw(self, split: Split, folder: Path, *, count: int) -> list[str]:
        return [str(path) for path in split.images.images[:count]]  # type: ignore[attr-defined]
