"""Both tasks of point clouds pass the contract of every task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from attngraft.tasks.task import Split
from tests.contract.task_contract import TaskContract
from tests.tasks.points.shapes import CATEGORIES, write_shapes

PLAIN = {"scale": (1.0, 1.0), "shift": 0.0}  #: augmentation that changes nothing but the order
SIZES = {"depth": 2, "embed_dim": 24, "num_heads": 3, "num_latents": 8, "scale": 4.0}


class TestPoints(TaskContract):
    host: ClassVar = {"name": "attngraft:bixt_points_naive", "args": SIZES}
    lr: ClassVar = 5e-3
    steps: ClassVar = 150
    held_fixed = frozenset({"balanced_accuracy"})

    def section(self, folder: Path) -> dict[str, Any]:
        data = {"source": str(write_shapes(folder / "shapes.npz", train=9, val=13))}
        return {"name": "points", "data": data, "points": 48, "augment": PLAIN, "loss": {"smoothing": 0.0}}

    def broken(self, folder: Path) -> Mapping[str, dict[str, Any]]:
        (folder / "cut.npz").write_bytes(b"PK")
        (folder / "empty").mkdir()
        return {
            "no point clouds": {"data": {"source": str(folder / "empty")}},
            r"cut\.npz: cannot be read": {"data": {"source": str(folder / "cut.npz")}},
            "has 64 points, but 65 are needed": {"points": 65},
            "have none; use --set task.data.normals=false": {"data": {**self.section(folder)["data"], "normals": True}},
        }

    def raw(self, split: Split, folder: Path, *, count: int) -> list[str]:
        names = [str(folder / f"{index}.npy") for index in range(count)]
        for index, name in enumerate(names):
            np.save(name, split.clouds.cloud(index).points)  # type: ignore[attr-defined]
        return names


class TestPointParts(TestPoints):
    host: ClassVar = {"name": "attngraft:bixt_parts_naive", "args": SIZES}
    held_fixed = frozenset()

    def section(self, folder: Path) -> dict[str, Any]:
        data = {"source": str(write_shapes(folder / "shapes.npz", train=9, val=13))}
        return {"name": "point_parts", "data": data, "points": 48, "sample": "first", "augment": PLAIN}

    def broken(self, folder: Path) -> Mapping[str, dict[str, Any]]:
        section = self.section(folder)["data"]["source"]
        with np.load(section) as arrays:
            bare = {name: arrays[name] for name in arrays if not name.startswith("parts")}
        np.savez(folder / "bare.npz", **bare)
        return super().broken(folder) | {"the points have no parts": {"data": {"source": str(folder / "bare.npz")}}}

    def raw(self, split: Split, folder: Path, *, count: int) -> list[str]:
        categories = [CATEGORIES[split.clouds.categories[index]] for index in range(count)]  # type: ignore[attr-defined]
        return [
            f"{name}={file}" for name, file in zip(categories, super().raw(split, folder, count=count), strict=True)
        ]
