"""Folders of instance masks: kinds of values, and mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attngraft.errors import DataError
from attngraft.tasks.detection.facts import read_facts
from tests.tasks.detection.scenes import box_of, opened, save, scene, write_bowl, write_masks


def read(folder: Path) -> None:
    source = opened(folder)
    read_facts(source.train.joined(source.val) if source.drawn else source.train, ("object",))


def refused(folder: Path, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(folder)


def test_values_of_16_bits(tmp_path: Path) -> None:
    write_masks(tmp_path, dtype=np.uint16)
    path = tmp_path / "masks/train/01.png"
    _, objects = scene(1)
    labels = np.zeros(objects[0][1].shape, dtype=np.uint16)
    for value, (_, mask) in zip((300, 60000), objects, strict=True):
        labels[mask] = value
    save(path, labels)
    found = opened(tmp_path).train.objects(1)
    assert found.boxes.tolist() == [list(box_of(mask)) for _, mask in objects]


def test_wrong_masks(tmp_path: Path) -> None:
    write_masks(tmp_path)
    save(tmp_path / "masks/train/00.png", np.ones((36, 47), dtype=np.uint8))
    refused(tmp_path, r"masks/train/00\.png: 47 x 36, but its image 00\.png is 48 x 36; make them the same size")
    save(tmp_path / "masks/train/00.png", np.ones((36, 48, 3), dtype=np.uint8))
    refused(tmp_path, r"00\.png: a mask in mode RGB; instance masks have one value per pixel")
    (tmp_path / "masks/train/00.png").write_bytes(b"x")
    refused(tmp_path, r"masks/train/00\.png: cannot be read as a mask")
    (tmp_path / "masks/train/00.png").unlink()
    refused(tmp_path, r"images/train/00\.png: has no mask 00\.\*")
    save(tmp_path / "masks/train/00.jpg", np.ones((36, 48), dtype=np.uint8))
    refused(tmp_path, r"00\.jpg: a JPEG cannot hold labels")


def test_empty_masks(tmp_path: Path) -> None:
    write_masks(tmp_path)
    for path in (tmp_path / "masks/train").iterdir():
        save(path, np.zeros_like(np.asarray(Image.open(path))))
    refused(tmp_path, r"and 5 more images of the split: no objects; annotate some")


def test_wrong_folders_per_image(tmp_path: Path) -> None:
    write_bowl(tmp_path)
    save(tmp_path / "00/masks/9.png", np.ones((5, 5), dtype=np.uint8))
    refused(tmp_path, r"00/masks/9\.png: 5 x 5, but its image 00\.png is 48 x 36")
    save(tmp_path / "00/images/b.png", np.ones((5, 5, 3), dtype=np.uint8))
    refused(tmp_path, r"00/images: 2 images, but a folder beside masks of objects must have one")
    (tmp_path / "00/images/b.png").unlink()
    (tmp_path / "02/masks").rename(tmp_path / "02/x")
    refused(tmp_path, "02: no folder of masks; add it, empty for an image without objects, or remove this folder")
    (tmp_path / "01/images").rename(tmp_path / "01/x")
    refused(tmp_path, "01: no folder of its image; add it, or remove this folder")


def test_splits_of_folders_per_image(tmp_path: Path) -> None:
    write_bowl(tmp_path / "train")
    write_bowl(tmp_path / "val")
    (tmp_path / "train/.checkpoints").mkdir()
    source = opened(tmp_path)
    assert source.train.names[1] == "train/01/images/01.png"
    assert source.val.objects(1).boxes.tolist() == source.train.objects(1).boxes.tolist()
    assert source.val.fingerprint() == source.train.fingerprint()
