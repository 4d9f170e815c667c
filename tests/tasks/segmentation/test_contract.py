"""Segmentation passes the contract of every task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from PIL import Image
from torch import nn

import attngraft
from attngraft.checksums import FILE as CHECKSUMS
from attngraft.errors import ConfigError
from attngraft.export.run import export_run
from attngraft.saved.manifest import MANIFEST
from attngraft.tasks.task import Split
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from tests.contract.task_contract import TaskContract
from tests.tasks.segmentation.drawings import HOST, drawing, section, write_drawings


def no_dropout() -> None:
    """The head drops channels at random in each process."""
    nn.Dropout2d.forward = lambda self, x: x  # type: ignore[method-assign]


class TestSegmentation(TaskContract):
    """An auxiliary head, labels in rows of images without any, and images of different sizes."""

    host: ClassVar = HOST
    fix_draws = staticmethod(no_dropout)
    overfit, steps, lr = 0.5, 80, 1e-2
    together_lr = 0.002  # norms over few pixels amplify rounding

    def section(self, folder: Path) -> dict[str, Any]:
        augment = {"crop": [16, 16], "scale": [1.0, 1.0], "hflip": 0.0, "photometric": False}
        return section(folder / "drawings", head="upernet", width=8, norm="group", auxiliary=0.4, augment=augment)

    def broken(self, folder: Path) -> Mapping[str, dict[str, Any]]:
        (folder / "empty").mkdir(exist_ok=True)
        wrong = write_drawings(folder / "wrong")
        Image.new("L", (24, 20), 200).save(wrong / "masks" / "train" / "0.png")
        return {
            "empty": {"data": {"source": str(folder / "empty")}},
            "200": {"data": {"source": str(wrong)}},
        }

    def raw(self, split: Split, folder: Path, *, count: int) -> list[str]:
        names = [str(folder / f"raw{index}.png") for index in range(count)]
        for index, name in enumerate(names):
            drawing(index)[0].save(name)
        return names


def test_changed_facts_of_an_exported_model_are_named(tmp_path: Path) -> None:
    train(TestSegmentation().recipe(tmp_path / "data", schedule={"epochs": 1}), tmp_path / "run", progress=Silent())
    out = tmp_path / "out"
    export_run(tmp_path / "run", out)
    (out / CHECKSUMS).unlink()
    manifest = json.loads((out / MANIFEST).read_text())
    manifest["around"]["facts"] = {"x": 1}
    (out / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=rf"{MANIFEST}: around\.facts\.classes: missing"):
        attngraft.load(out)
