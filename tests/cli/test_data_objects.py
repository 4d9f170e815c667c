"""`attngraft data check` on images with annotated objects."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attngraft import cache
from attngraft.tasks.task import TASKS
from tests.cli.test_data import check
from tests.tasks.detection.scenes import coco, write_coco, write_masks, write_text, write_voc, write_yolo


class Stub:
    """What the command needs of the task."""

    name, default_recipe, capabilities = "detection", None, frozenset({"data_check"})


@pytest.fixture(autouse=True)
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.ENVIRONMENT, str(tmp_path / "cache"))
    if "detection" not in TASKS:
        monkeypatch.setitem(TASKS, "detection", f"{__name__}:Stub")


def cells(shown: str, start: str) -> list[str]:
    """Return the cells of a row."""
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in shown.splitlines() if "│" in line]
    return next(row for row in rows if row[0] == start)


def test_objects_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    folder, sheet = write_coco(tmp_path / "scenes"), tmp_path / "sheet.png"
    content = coco("train")
    content["annotations"][0].update(iscrowd=1)
    content["annotations"][1]["bbox"][0] = -2
    content["categories"].append({"id": 90, "name": "star [red]"})
    for split in ("train", "val"):
        written = {**(content if split == "train" else coco(split)), "categories": content["categories"]}
        write_text(folder / f"annotations/instances_{split}.json", json.dumps(written))
    assert check(folder, "--task", "detection", "--contact-sheet", sheet) == 0
    shown = capsys.readouterr().out
    assert f"{folder}: images with masks of objects, 3 classes, for detection" in shown
    assert "Split: the splits of the data" in shown
    row = cells(shown, "train")
    assert row[:6] == ["train", "6", "1", "8", "8, 0, 0", "1"]
    assert cells(shown, "90") == ["90", "star [red]", "0", "0"]
    assert "Note: Classes without a training object: star [red]." in shown
    assert "Note: Boxes that are partly outside of their image, and clipped: 1." in shown
    assert f"Ready: attngraft compare --data {folder}" in shown
    assert "faster_rcnn" not in shown
    with Image.open(sheet) as picture:
        assert picture.size == (4 * 240, 2 * 240)
        pixels = np.asarray(picture)
    assert (np.ptp(pixels.astype(int), axis=2) > 100).any(), "colors of classes"


def test_boxes_need_another_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tasks of YOLO labels and Pascal VOC annotations need no --task."""
    for write in (write_yolo, write_voc):
        folder = write(tmp_path / write.__name__)
        assert check(folder, "--val-fraction", "0.5", "--save-split", tmp_path / "split.csv") == 0
        shown = capsys.readouterr().out
        assert "images with boxes of objects, 2 classes, for detection" in shown
        assert "0.5 of the images for validation, at random with split_seed 0" in shown
        assert "--set task.data.val_fraction=0.5 --set task.head=faster_rcnn" in shown
        assert len((tmp_path / "split.csv").read_text().splitlines()) == 7


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(write_masks(tmp_path / "m"), "--task", "detection", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["classes"] == ["object"]
    assert found["category_ids"] == [1]
    assert found["masks"] is True
    assert found["objects"] == {"train": {"object": 9}, "val": {"object": 4}}
    assert found["areas"]["train"] == {"small": 9, "medium": 0, "large": 0}
    assert found["without_objects"] == {"train": 1, "val": 1}
    assert found["most_objects"] == {"train": 3, "val": 3}
    assert sum(each["images"] for each in found["image_sizes"]["train"]) == 6
    assert found["refusals"] == []


def test_many_objects_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_yolo(tmp_path / "y")
    write_text(folder / "labels/train/01.txt", "0 0.5 0.5 0.2 0.2\n" * 220)
    assert check(folder, "--json") == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    twice, note = notes[-2:]
    assert twice == "Objects that occur twice, with the same class, box and area: 219."
    assert note.startswith("Images with more than ")
    assert "of which the rest cannot be found: 1, with up to 220; use --set task.test.detections=220." in note


def test_mistakes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_yolo(tmp_path / "y")
    write_text(folder / "labels/train/01.txt", "0 5\n7 0.5 0.5 0.2 0.2\n")
    assert check(folder) == 2
    shown = capsys.readouterr().out
    assert "Training would be refused:" in shown
    assert "01.txt, line 1: '0 5' is not `class x y width height`" in shown
    assert "01.txt, line 2: the class '7' is not a number in the names" in shown
    assert "Ready" not in shown
    assert check(folder, "--json") == 2
    assert "line 2" in json.loads(capsys.readouterr().out)["refusals"][0]
    assert check(write_masks(tmp_path / "m"), "--task", "detection", "--save-split", tmp_path / "s.csv") == 2
    assert "--save-split: these data already have a validation split" in capsys.readouterr().err
