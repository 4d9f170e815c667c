"""Folders of instance masks: kinds of values, and mistakes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attngraft.errors import DataError
from attngraft.tasks.detection import instances
from attngraft.tasks.detection.facts import read_facts
from tests.tasks.detection.scenes import box_of, opened, save, scene, write_bowl, write_masks


def read(folder: Path) -> None:
    source = opened(folder)
    read_facts(source.train.joined(source.val) if source.drawn else source.train, ("object",))


def refusal(folder: Path) -> str:
    with pytest.raises(DataError) as error:
        read(folder)
    return str(error.value)


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
    assert re.search(
        r"masks/train/00\.png: 47 x 36, but its image 00\.png is 48 x 36; make them the same size", refusal(tmp_path)
    )
    save(tmp_path / "masks/train/00.png", np.ones((36, 48, 3), dtype=np.uint8))
    assert re.search(r"00\.png: a mask in mode RGB; instance masks have one value per pixel", refusal(tmp_path))
    (tmp_path / "masks/train/00.png").write_bytes(b"x")
    assert re.search(r"masks/train/00\.png: cannot be read as a mask", refusal(tmp_path))
    (tmp_path / "masks/train/00.png").unlink()
    assert re.search(r"images/train/00\.png: has no mask 00\.\*", refusal(tmp_path))
    save(tmp_path / "masks/train/00.jpg", np.ones((36, 48), dtype=np.uint8))
    assert re.search(r"00\.jpg: JPEG, lossy WebP and GIF change the values", refusal(tmp_path))


@pytest.mark.parametrize("write", [write_masks, write_bowl])
def test_noise_is_no_instance_mask(
    tmp_path: Path, write: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    read(tmp_path)
    path = next(path for path in sorted(tmp_path.rglob("*.png")) if "masks" in path.parts)
    values = np.zeros_like(np.asarray(Image.open(path)))
    values[:, ::2] = 1
    save(path, values)
    monkeypatch.setattr(instances, "_RUNS", 40)
    assert re.search(rf"{path.name}: \d+ changes of values, so it is noise and no instance mask", refusal(tmp_path))


def test_borders_are_no_objects(tmp_path: Path) -> None:
    write_masks(tmp_path)
    labels = np.zeros((37, 47), dtype=np.uint8)
    labels[3:9, 3:9], labels[4:8, 4:8], labels[20:25, 20:25] = 255, 1, 2
    save(tmp_path / "masks/train/01.png", labels)
    assert re.search(r"01\.png: the value 255 besides 1 to 2 is that of borders.*; replace it by 0", refusal(tmp_path))
    for others in ([], [7], range(1, 255)):  # these are objects
        labels.flat[: len(others) + 1] = [*others, 255]
        labels.flat[len(others) + 1 :] = 0
        save(tmp_path / "masks/train/01.png", labels)
        read(tmp_path)


def test_empty_masks(tmp_path: Path) -> None:
    write_masks(tmp_path)
    for path in (tmp_path / "masks/train").iterdir():
        save(path, np.zeros_like(np.asarray(Image.open(path))))
    assert re.search(r"and 5 more images of the split: no objects; annotate some", refusal(tmp_path))


def test_wrong_folders_per_image(tmp_path: Path) -> None:
    write_bowl(tmp_path)
    save(tmp_path / "00/masks/9.png", np.ones((5, 5), dtype=np.uint8))
    assert re.search(r"00/masks/9\.png: 5 x 5, but its image 00\.png is 48 x 36", refusal(tmp_path))
    save(tmp_path / "00/masks/9.png", np.zeros((36, 48), dtype=np.uint8))
    assert re.search(r"00/masks/9\.png: the mask has no pixel; correct or remove it", refusal(tmp_path))
    save(tmp_path / "00/images/b.png", np.ones((5, 5, 3), dtype=np.uint8))
    assert re.search(r"00/images: 2 images, but a folder beside masks of objects must have one", refusal(tmp_path))
    (tmp_path / "00/images/b.png").unlink()
    (tmp_path / "02/masks").rename(tmp_path / "02/x")
    assert re.search(
        "02: no folder of masks; add it, empty for an image without objects, or remove this folder", refusal(tmp_path)
    )
    (tmp_path / "01/images").rename(tmp_path / "01/x")
    assert re.search("01: no folder of its image; add it, or remove this folder", refusal(tmp_path))


def test_splits_of_folders_per_image(tmp_path: Path) -> None:
    write_bowl(tmp_path / "train")
    write_bowl(tmp_path / "val")
    (tmp_path / "train/.checkpoints").mkdir()
    source = opened(tmp_path)
    assert source.train.names[1] == "train/01/images/01.png"
    assert source.val.objects(1).boxes.tolist() == source.train.objects(1).boxes.tolist()
    assert source.val.fingerprint() == source.train.fingerprint()
