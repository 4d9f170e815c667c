"""Files of point clouds as inputs of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngraft.errors import DataError
from attngraft.strict import read
from attngraft.tasks.points.config import PointPartsConfig, PointsConfig
from attngraft.tasks.points.parts import PointParts
from attngraft.tasks.points.task import Points


@pytest.mark.parametrize("parts", [False, True])
def test_colors_are_no_normals(tmp_path: Path, parts: bool) -> None:
    random = np.random.default_rng(0)
    points, normals = random.normal(size=(2, 40, 3))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    np.save(tmp_path / "normals.npy", np.concatenate([points, normals], axis=1))
    np.save(tmp_path / "colors.npy", np.concatenate([points, random.integers(256, size=(40, 3))], axis=1))
    facts = {
        "classes": ["mug"],
        "parts": [[0, 1]],
        "input": {"points": 40, "sample": "random", "normals": True, "normalize": True},
    }

    def check(name: str, **fields: Any) -> None:
        section = {"data": {"source": "x", **fields}, "points": 40}
        task: Points | PointParts = (
            PointParts(read(PointPartsConfig, section, where="task"), seed=0)
            if parts
            else Points(read(PointsConfig, section, where="task"), seed=0)
        )
        codec = task.codec(facts, model_data_config={})
        codec.check(str(tmp_path / name))
        codec.encode([str(tmp_path / name)])

    check("normals.npy")
    check("colors.npy", normals=True)
    with pytest.raises(DataError, match=r"colors\.npy: .* are no normals, .*; replace them"):
        check("colors.npy")
