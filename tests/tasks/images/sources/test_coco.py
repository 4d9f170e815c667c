"""COCO's annotations against files written here, and against the real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources import ImageSource, open_source


def _content(*objects: list[int], first: int = 0) -> dict[str, Any]:
    """Annotations of images `0.png`, ...: each with objects of these categories."""
    categories = [{"id": 1, "name": "person"}, {"id": 3, "name": "car"}, {"id": 7, "name": "train"}]
    images = [{"id": 100 + i, "file_name": f"{first + i}.png"} for i in range(len(objects))]
    annotations = [
        {"id": 10 * i + k, "image_id": 100 + i, "category_id": category, "bbox": [0, 0, 1, 1], "iscrowd": k % 2}
        for i, own in enumerate(objects)
        for k, category in enumerate(own)
    ]
    return {"images": images, "annotations": annotations, "categories": categories}


def _write(file: Path, content: Any, images: Path | None = None) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")
    if images is not None:
        images.mkdir(parents=True, exist_ok=True)
        for entry in content["images"]:
            Image.new("RGB", (4, 4)).save(images / entry["file_name"])
    return file


def _open(path: Path, **config: Any) -> ImageSource:
    return open_source(DataConfig(source=str(path), **config))


def test_a_folder_as_coco_comes(tmp_path: Path) -> None:
    _write(tmp_path / "annotations/instances_train2017.json", _content([1, 1], [3, 1], []), tmp_path / "train2017")
    _write(tmp_path / "annotations/instances_val2017.json", _content([3], first=5), tmp_path / "val2017")
    _write(tmp_path / "annotations/captions_train2017.json", {"images": [], "annotations": []})
    parts = _open(tmp_path)
    assert (parts.kind, parts.multilabel, parts.classes) == ("coco", True, ("person", "car"))
    assert list(parts.train.names) == ["train2017/0.png", "train2017/1.png", "train2017/2.png"]
    assert parts.train.labels.tolist() == [[1, 0], [1, 1], [0, 0]]
    assert parts.val is not None
    assert list(parts.val.names) == ["val2017/5.png"]
    assert parts.val.labels.tolist() == [[0, 1]]
    assert parts.val.open(0).size == (4, 4)
    assert parts.notes == ("1 of 3 categories have no objects and are dropped.",)
    swapped = _open(tmp_path, train_split="val2017", val_split="train")
    assert (len(swapped.train), swapped.val and len(swapped.val)) == (1, 3)
    assert _open(tmp_path, val_fraction=0.5).val is None
    _write(tmp_path / "instances_val2017.json", _content([3], first=5))
    with pytest.raises(DataError, match=r"has instances_val2017\.json and annotations/instances_val2017\.json; remove"):
        _open(tmp_path)


def test_annotations_among_the_images(tmp_path: Path) -> None:
    _write(tmp_path / "train/_annotations.coco.json", _content([1], [7]), tmp_path / "train")
    _write(tmp_path / "valid/_annotations.coco.json", _content([7]), tmp_path / "valid")
    parts = _open(tmp_path)
    assert parts.classes == ("person", "train")
    assert list(parts.train.names) == ["train/0.png", "train/1.png"]
    assert parts.val is not None
    assert list(parts.val.names) == ["valid/0.png"]


@pytest.mark.parametrize("images", ["", "images", "part", "images/part"])
def test_a_file_by_itself(tmp_path: Path, images: str) -> None:
    file = _write(tmp_path / "annotations/part.json", _content([1], [3]), tmp_path / images)
    parts = _open(file)
    assert parts.val is None
    assert parts.train.open(1).size == (4, 4)
    assert parts.train.labels.tolist() == [[1, 0], [0, 1]]


def test_images_elsewhere(tmp_path: Path) -> None:
    file = _write(tmp_path / "a/labels.json", _content([1], [3]), tmp_path / "b")
    with pytest.raises(DataError, match=r"labels\.json: none of the first 2 images .*task\.data\.root"):
        _open(file)
    assert _open(file, root=str(tmp_path / "b")).train.open(0).size == (4, 4)
    with pytest.raises(DataError, match=r"task\.data\.root: .* is not a folder"):
        _open(file, root=str(tmp_path / "c"))


def test_no_validation_part(tmp_path: Path) -> None:
    _write(tmp_path / "annotations/instances_train2017.json", _content([1]), tmp_path / "train2017")
    with pytest.raises(DataError, match=r"training split 'train2017' but no validation split"):
        _open(tmp_path)
    _write(tmp_path / "other/annotations/instances_all.json", _content([1]), tmp_path / "other")
    with pytest.raises(DataError, match=r"no training annotations.*train_split=NAME; available: all"):
        _open(tmp_path / "other")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"categories": None}, r"the list 'categories' is missing.*\.csv"),
        ({"annotations": [{"image_id": 5, "category_id": 1}]}, r"annotations\[0\] refers to image 5"),
        ({"annotations": [{"image_id": 100, "category_id": 2}]}, r"annotations\[0\] refers to category 2"),
        ({"annotations": [{"image_id": 100}]}, r"annotations\[0\] refers to category None"),
        ({"images": [{"id": 1}]}, r"images\[0\] must have an id and a string 'file_name'"),
        ({"images": [{"id": 1, "file_name": "a"}] * 2}, r"images\[1\] repeats the id 1"),
        ({"images": [{"id": 1, "file_name": "../x.png"}], "annotations": []}, r"'\.\./x\.png' is not a path below"),
        ({"images": [], "annotations": []}, "the list 'images' is empty"),
        ({"images": ["a"]}, r"the list 'images' is missing"),
    ],
)
def test_what_is_no_coco_is_told(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = _write(tmp_path / "x.json", {**_content([1]), **change})
    with pytest.raises(DataError, match=message):
        _open(file)


def test_what_is_no_json_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(DataError, match=r"x\.json: cannot be read as JSON"):
        _open(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(DataError, match=r"the list 'images' is missing"):
        _open(tmp_path / "x.json")


def test_the_real_one(shared: Path) -> None:
    parts = _open(shared / "data/coco_small")
    assert (len(parts.train), parts.val and len(parts.val)) == (209, 79)
    assert parts.classes[0] == "person"
    assert 40 < len(parts.classes) <= 80
    assert (parts.train.labels.sum(1) == 0).sum() == 1
    raw = json.loads((shared / "data/coco_small/annotations/instances_train2017.json").read_text())
    pairs = {(a["image_id"], a["category_id"]) for a in raw["annotations"]}
    assert parts.train.labels.sum() == len(pairs)
    assert np.array(parts.train.open(0)).ndim >= 2
