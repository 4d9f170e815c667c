"""Examples for training and evaluation, and their order."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attngraft.errors import DataError
from attngraft.tasks.detection.augmentation import resized
from attngraft.tasks.detection.config import DetectionTestConfig, ObjectAugmentConfig
from attngraft.tasks.detection.split import ObjectSplit
from attngraft.tasks.images.inputs import image_to_tensor
from tests.tasks.detection.scenes import CLASSES, HOST, opened, write_coco, write_voc

AUGMENT = ObjectAugmentConfig(size=(24, 32), crop=(28, 30), photometric=True, rotate=True)


def split(folder: Path, *, part: str = "train", **fields: Any) -> ObjectSplit:
    settings: dict[str, Any] = {"masks": True, "test": DetectionTestConfig(size=24), "augment": AUGMENT, **fields}
    return ObjectSplit(opened(folder).parts()[part], host=HOST, classes=CLASSES, **settings)


def equal(one: Any, other: Any) -> bool:
    return torch.equal(one[0], other[0]) and all(torch.equal(one[1][key], other[1][key]) for key in one[1])


def test_training_examples(tmp_path: Path) -> None:
    found = split(write_coco(tmp_path))
    for index in range(len(found)):
        image, target = found[0, index]
        assert image.dtype == torch.uint8 and image.shape == (3, 28, 30)
        assert list(target) == ["boxes", "labels", "masks"]
        assert target["boxes"].dtype == torch.float32 and target["boxes"].shape[1:] == (4,)
        assert target["labels"].dtype == torch.int64 and len(target["labels"]) == len(target["boxes"])
        assert target["masks"].dtype == torch.uint8 and target["masks"].shape == (len(target["boxes"]), 28, 30)
        assert set(target["labels"].tolist()) <= {1, 2}
    batch = found.collate([found[0, 0], found[0, 1]])
    assert list(batch) == ["image", "target"]
    assert len(batch["image"]) == len(batch["target"]) == 2
    assert list(split(tmp_path, masks=False)[0, 0][1]) == ["boxes", "labels"]


def test_masks_are_decoded_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = split(write_coco(tmp_path))
    wanted = [found[epoch, index] for epoch in range(3) for index in range(len(found))]
    monkeypatch.setattr("attngraft.tasks.detection.split._DECODED", 1)
    assert all(equal(one, found[divmod(place, len(found))]) for place, one in enumerate(wanted))


def test_examples_follow_from_seed_epoch_and_index(tmp_path: Path) -> None:
    one, other = split(write_coco(tmp_path), seed=3), split(tmp_path, seed=3)
    for key in [(0, 1), (1, 1), (0, 2)]:
        np.random.seed(0), torch.manual_seed(0)
        first = one[key]
        np.random.seed(1), torch.manual_seed(1)
        assert equal(first, other[key])
        assert equal(first, pickle.loads(pickle.dumps(one))[key])
    assert not equal(one[0, 1], one[1, 1])
    assert not equal(one[0, 1], split(tmp_path, seed=4)[0, 1])


def test_crowds_are_not_trained_on(tmp_path: Path) -> None:
    found = split(write_voc(tmp_path), augment=dataclasses.replace(AUGMENT, size=(), crop=None))
    index = next(i for i in range(len(found)) if len(found.images.objects(i)) == 3)
    assert len(found[0, index][1]["boxes"]) == 3
    annotation: Any = found.images.annotations[index]
    annotation.found.crowd[1] = True
    labels = annotation.found.labels[[0, 2]] + 1
    assert found[0, index][1]["labels"].tolist() == labels.tolist()


def test_evaluation_examples(tmp_path: Path) -> None:
    found = split(write_coco(tmp_path), part="val", augment=None)
    example = found[0, 1]
    assert list(example) == ["image", "objects", "size"]
    assert example["image"].shape[1] == 24
    assert example["size"] == found.images.size(1)[::-1]
    assert len(example["objects"]) == len(found.images.objects(1))
    pixels = image_to_tensor(found.images.image(1))
    assert torch.equal(example["image"], resized(pixels, DetectionTestConfig(size=24)))
    assert list(found.collate([example, found[0, 0]])) == ["image", "objects", "size"]
    canvas = split(tmp_path, part="val", augment=None, canvas=(20, 20))
    assert all(max(canvas[0, index]["image"].shape[1:]) <= 20 for index in range(len(canvas)))


def test_gray_hosts(tmp_path: Path) -> None:
    host = dataclasses.replace(HOST, channels=1, mean=(0.5,), std=(0.5,))
    images = opened(write_coco(tmp_path)).train
    found = ObjectSplit(images, host=host, classes=CLASSES, masks=True, test=DetectionTestConfig(), augment=AUGMENT)
    assert found[0, 0][0].shape == (1, 28, 30)


def test_names_parts_and_fingerprint(tmp_path: Path) -> None:
    found = split(write_coco(tmp_path))
    part = found.take(np.array([4, 1]))
    assert [part.name(i) for i in range(len(part))] == ["images/train/04.png", "images/train/01.png"]
    assert part.fingerprint() != found.fingerprint() == split(tmp_path).fingerprint()
    other = ObjectSplit(found.images, host=HOST, classes=("a", "b"), masks=True, test=DetectionTestConfig())
    assert other.fingerprint() != found.fingerprint()


def test_image_of_another_size(tmp_path: Path) -> None:
    found = split(write_coco(tmp_path))
    (tmp_path / "images/train/00.png").write_bytes((tmp_path / "images/train/01.png").read_bytes())
    with pytest.raises(DataError, match=r"00\.png: 47 x 37, but its annotation is for 48 x 36; correct one of them"):
        found[0, 0]
