"""Detection passes the contract of every task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from PIL import Image

from attngraft.tasks.task import Split
from tests.contract.task_contract import TaskContract
from tests.tasks.detection.scenes import SMALL, scene, write_coco
from tests.tasks.segmentation.drawings import HOST

PLAIN = {"size": [], "hflip": 0.0}


def no_draws() -> None:
    """Anchors and boxes are drawn in each process."""
    torch.randperm = lambda number, **options: torch.arange(number, device=options.get("device"))


class TestDetection(TaskContract):
    """Boxes and masks, images of different sizes, some without objects."""

    host: ClassVar = HOST
    fix_draws = staticmethod(no_draws)
    overfit, steps, lr = 0.6, 30, 1e-2
    together_lr = 0.002
    head = "mask_rcnn"

    def section(self, folder: Path) -> dict[str, Any]:
        data = write_coco(folder / "scenes", {"train": 24, "val": 5})
        test = {"size": None, "detections": 20}
        return {
            "name": "detection",
            "data": {"source": str(data)},
            "head": self.head,
            "augment": PLAIN,
            "test": test,
            **SMALL,
        }

    def broken(self, folder: Path) -> Mapping[str, dict[str, Any]]:
        (folder / "empty").mkdir(exist_ok=True)
        wrong = write_coco(folder / "wrong")
        (wrong / "images" / "train" / "01.png").unlink()
        return {
            "empty": {"data": {"source": str(folder / "empty")}},
            r"01\.png": {"data": {"source": str(wrong)}},
        }

    def raw(self, split: Split, folder: Path, *, count: int) -> list[str]:
        names = [str(folder / f"raw{index}.png") for index in range(count)]
        for index, name in enumerate(names):
            Image.fromarray(scene(index)[0]).save(name)
        return names

    @pytest.mark.slow
    def test_two_processes_are_one(self, tmp_path: Path) -> None:
        """With boxes alone: the loss of masks is a mean over the boxes with an object, whose number varies."""
        self.head = "faster_rcnn"
        super().test_two_processes_are_one(tmp_path)
