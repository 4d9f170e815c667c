"""Npz files: parts, names, and every wrong array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attngraft.errors import DataError
from tests.tasks.images.datasets import host_config, load, make_task, normalized


def _arrays(**changes: Any) -> dict[str, np.ndarray]:
    rng = np.random.RandomState(0)
    arrays = {
        "x_train": rng.randint(0, 256, (8, 16, 16, 3), dtype=np.uint8),
        "y_train": np.array([0, 1, 0, 1, 0, 1, 0, 1]),
        "x_test": rng.randint(0, 256, (4, 16, 16, 3), dtype=np.uint8),
        "y_test": np.array([0, 1, 1, 1], dtype=np.int32),
        "classes": np.array(["chat", "œuf"]),
        "f_test": np.array([b"a.jpg", b"b.jpg", b"c.jpg", b"d.jpg"]),
    }
    return {name: array for name, array in (arrays | changes).items() if array is not None}


def _save(folder: Path, **changes: Any) -> Path:
    path = folder / "x.npz"
    np.savez(path, **_arrays(**changes))
    return path


def test_pixels_labels_and_names(tmp_path: Path) -> None:
    data = load(_save(tmp_path))
    assert data.facts["classes"] == ["chat", "œuf"]
    assert data.facts["counts"]["val"] == {"chat": 1, "œuf": 3}
    assert [data.val.name(0), data.train.name(7)] == ["a.jpg", "train/7"]
    batch = data.val.collate([data.val[(0, i)] for i in (2, 0)])
    pixels = torch.from_numpy(_arrays()["x_test"][[2, 0]]).permute(0, 3, 1, 2)
    assert torch.equal(normalized(batch["image"], host_config(16)), (pixels.float() / 255 - 0.5) / 0.25)
    assert batch["target"].tolist() == [1, 0]


def test_validation_is_preferred_to_test_and_can_be_drawn(tmp_path: Path) -> None:
    extra = {"x_val": np.zeros((2, 16, 16), np.uint8), "y_val": np.array([0, 1])}
    path = _save(tmp_path, **extra)
    assert load(path).facts["split"] == "the arrays x_train and x_val"
    assert load(path, data={"val_split": "test"}).facts["sizes"]["val"] == 4
    assert load(path, data={"val_fraction": 0.25}).facts["sizes"] == {"train": 6, "val": 2, "test": 4}


@pytest.mark.parametrize("shape", [(8, 16, 16), (8, 16, 16, 1), (8, 16, 16, 4)])
@pytest.mark.parametrize("channels", [1, 3])
def test_gray_and_rgba_become_what_the_host_takes(tmp_path: Path, shape: tuple[int, ...], channels: int) -> None:
    path = _save(tmp_path, x_train=np.full(shape, 51, np.uint8))
    shown = 51 if shape[-1] != 4 else 51 * 0.2 + 255 * 0.8  # transparent pixels are laid on white
    data = make_task(path).load(model_data_config=host_config(16, channels=channels))
    batch = data.train.collate([data.train[(0, 0)]])
    assert batch["image"].shape == (1, channels, 16, 16)
    images = normalized(batch["image"], host_config(16, channels=channels))
    assert images.max() == pytest.approx((round(shown) / 255 - 0.5) / 0.25)


def test_classes_without_names_are_numbers(tmp_path: Path) -> None:
    assert load(_save(tmp_path, classes=None)).facts["classes"] == ["0", "1"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": None, "y_train": None}, r"must contain the arrays x_train and y_train; found: classes, f_test"),
        ({"x_test": None}, r"a training split 'train' but no validation split"),
        ({"y_train": None}, r"has images x_train but no labels y_train"),
        ({"y_train": np.zeros(8)}, r"y_train must be one integer per image, got float64"),
        ({"y_train": np.zeros((8, 1), int)}, r"y_train must be one integer per image"),
        ({"y_train": np.arange(8)}, r"y_train ranges from 0 to 7, but labels of 2 classes must be 0 to 1"),
        ({"y_train": np.zeros(7, int)}, r"x_train has 8 images, y_train has 7 entries"),
        ({"y_train": np.zeros(8, int)}, r"no training images of class 'œuf'"),
        ({"f_test": np.array([b"a"])}, r"x_test has 4 images, f_test has 1 entries"),
        ({"x_train": np.zeros((8, 16, 16, 3))}, r"x_train must be uint8 \(0 to 255\), got float64"),
        ({"x_train": np.zeros((8, 3, 16, 16), np.uint8)}, r"channels-first.*transpose\(0, 2, 3, 1\)"),
        ({"x_train": np.zeros((8, 16), np.uint8)}, r"x_train must be \(N, H, W\) or"),
        ({"classes": np.array(["a", None], dtype=object)}, r"cannot be read as \.npz .*without object arrays"),
        ({"classes": np.array(["a"]), "y_train": np.zeros(8, int), "y_test": np.zeros(4, int)}, r"a single class, 'a'"),
    ],
)
def test_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = _save(tmp_path, **changes)
    with pytest.raises(DataError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04cut"])
def test_damaged_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npz: cannot be read as \.npz"):
        load(tmp_path / "x.npz")
