"""Arrays in .npz and .npy files: splits, names, labels, ranges, and every wrong array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources import ImageSource, npz, open_source
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


PIXELS = np.random.RandomState(1).randint(0, 256, (12, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(12) % 3


def _open(path: Path, **fields: Any) -> ImageSource:
    return open_source(DataConfig(source=str(path), **fields))


def test_medmnist(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray] = {}
    for first, split in enumerate(("train", "val", "test")):
        arrays |= {f"{split}_images": PIXELS[first::3], f"{split}_labels": np.array([[0], [1], [1], [0]], np.uint8)}
    np.savez_compressed(tmp_path / "pathmnist.npz", **arrays)
    data = load(tmp_path / "pathmnist.npz")
    assert data.facts["sizes"] == {"train": 4, "val": 4, "test": 4}
    assert data.facts["split"] == "the arrays train_images and val_images"
    assert data.facts["classes"] == ["0", "1"]
    assert data.val.name(1) == "val/1"
    several = {f"{split}_labels": np.eye(4, 5, dtype=np.uint8) * (split != "val") for split in ("train", "val", "test")}
    np.savez(tmp_path / "chestmnist.npz", **arrays | several)
    found = _open(tmp_path / "chestmnist.npz")
    assert (found.multilabel, found.classes, found.train.labels.shape) == (True, tuple("01234"), (4, 5))


@pytest.mark.parametrize(
    ("images", "labels"), [("x", "y"), ("images", "labels"), ("X", "Y"), ("X", "y"), ("x", "labels")]
)
@pytest.mark.parametrize("files", ["npz", "npy"])
def test_without_splits_validation_is_drawn(tmp_path: Path, images: str, labels: str, files: str) -> None:
    path = tmp_path / "x.npz" if files == "npz" else tmp_path
    if files == "npz":
        np.savez(path, **{images: PIXELS, labels: LABELS[:, None]})
    else:
        np.save(tmp_path / f"{images}.npy", PIXELS)
        np.save(tmp_path / f"{labels}.npy", LABELS)
    data = load(path)
    assert (data.facts["kind"], data.facts["sizes"]) == (files, {"train": 9, "val": 3})
    assert data.facts["split"].startswith(f"0.2 of each class of the array {images} for validation, at random")
    assert load(path, data={"val_fraction": 0.5}).facts["sizes"] == {"train": 6, "val": 6}
    for field in ("train_split", "val_split", "test_split"):
        with pytest.raises(DataError, match=rf"no split 'test' .*task\.data\.{field}"):
            _open(path, **{field: "test"})


@pytest.mark.parametrize(
    ("pixels", "note"),
    [
        (PIXELS / 255, "Float pixels in x (float64 from 0 to 1) are multiplied by 255 and rounded to 8 bits."),
        (
            (PIXELS / 255).astype(np.float16),
            "Float pixels in x (float16 from 0 to 1) are multiplied by 255 and rounded",
        ),
        (PIXELS.astype(np.float32), "Float pixels in x (float32 from 0 to 255) are rounded to 8 bits."),
        (PIXELS.astype(np.int64), ""),
    ],
)
def test_floats_and_wide_integers_are_the_same_pixels(tmp_path: Path, pixels: np.ndarray, note: str) -> None:
    np.savez(tmp_path / "x.npz", x=pixels, y=LABELS)
    found = _open(tmp_path / "x.npz")
    assert np.array_equal(np.stack([np.asarray(found.train.open(i)) for i in range(12)]), PIXELS)
    assert [text[: len(note)] for text in found.notes] == ([note] if note else [])


def test_a_dark_image_does_not_change_the_scale(tmp_path: Path) -> None:
    pixels = PIXELS / 255
    pixels[0] /= 300
    np.savez(tmp_path / "x.npz", x=pixels, y=LABELS)
    found = _open(tmp_path / "x.npz")
    assert np.asarray(found.train.open(0)).max() == 1
    np.savez(tmp_path / "x.npz", x=PIXELS > 127, y=LABELS)
    assert np.unique(np.asarray(_open(tmp_path / "x.npz").train.open(0))).tolist() == [0, 255]


def test_labels_may_be_names_or_one_hot(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=PIXELS, y=np.array(["c10", "c9", "a"])[LABELS])
    found = _open(tmp_path / "x.npz")
    assert (found.classes, found.train.labels[:3].tolist()) == (("a", "c9", "c10"), [2, 1, 0])
    np.savez(tmp_path / "x.npz", x=PIXELS, y=np.eye(3)[LABELS], classes=["p", "q", "r"])
    found = _open(tmp_path / "x.npz")
    assert (found.classes, found.multilabel, found.train.labels.tolist()) == (("p", "q", "r"), False, LABELS.tolist())
    assert found.notes == ("Labels are one-hot: each row has a single 1, so each image has one class.",)


def test_arrays_of_unknown_names_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", PIXELS, LABELS)
    with pytest.raises(DataError, match=r"without splits, x and y \(or images and labels\); found: arr_0, arr_1"):
        _open(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", images=PIXELS)
    with pytest.raises(DataError, match=r"has the images images, but no labels labels"):
        _open(tmp_path / "x.npz")
    (tmp_path / "npy").mkdir()
    np.save(tmp_path / "npy" / "x.npy", PIXELS)
    (tmp_path / "npy" / "y.npy").write_bytes(b"no array")
    with pytest.raises(DataError, match=r"y\.npy: cannot be read as \.npy .*write it with numpy\.save, without"):
        _open(tmp_path / "npy")
    with (tmp_path / "npy" / "y.npy").open("wb") as file:
        np.save(file, LABELS)
        np.save(file, LABELS)
    with pytest.raises(DataError, match=r"y\.npy: cannot be read as \.npy \(declares .* bytes more; save it again\)"):
        _open(tmp_path / "npy")
    with pytest.raises(DataError, match=r"x\.npy: give its folder, .*npy, with images and labels in x\.npy and y\.npy"):
        _open(tmp_path / "npy" / "x.npy")


def test_classes_without_names_are_numbers(tmp_path: Path) -> None:
    assert load(_save(tmp_path, classes=None)).facts["classes"] == ["0", "1"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": None, "y_train": None}, r"must contain the arrays x_train and y_train .*; found: classes, f_test"),
        ({"x_test": None}, r"a training split 'train' but no validation split"),
        ({"y_train": None}, r"has the images x_train, but no labels y_train"),
        ({"y_train": np.zeros(8)}, r"y_train must be one integer per image, or a column .*, got float64 \(8,\)"),
        ({"y_train": np.eye(8, 3)}, r"y_train must be one integer per image, or a column .*, got float64 \(8, 3\)"),
        (
            {"y_train": np.eye(8, 3), "y_test": np.eye(4, 3)},
            r"y_train has 3 columns, but the array classes has 2 names",
        ),
        ({"y_train": np.array(["fox"] * 8), "y_test": np.array(["chat"] * 4)}, r"y_train contains 'fox', which"),
        ({"y_train": np.arange(8)}, r"y_train ranges from 0 to 7, but labels of 2 classes must be 0 to 1"),
        ({"y_train": np.zeros(7, int)}, r"x_train has 8 images, y_train has 7 entries"),
        ({"y_train": np.zeros(8, int)}, r"no training images of class 'œuf'"),
        ({"y_train": np.zeros(9, "U1")}, r"x_train has 8 images, y_train has 9 entries"),
        ({"y_train": np.zeros((8, 30), np.uint8)}, r"y_train has 30 columns; give 20 classes or fewer"),
        ({"classes": np.zeros(30, np.uint8)}, r"classes has 30 names; give 20 classes or fewer"),
        ({"f_test": np.array([b"a"])}, r"x_test has 4 images, f_test has 1 entries"),
        (
            {"x_train": np.linspace(-1, 1, 8 * 256).reshape(8, 16, 16)},
            r"x_train \(float64\) ranges from -1 to 1, but pix",
        ),
        (
            {"x_train": np.linspace(0, 16, 8 * 256).reshape(8, 16, 16)},
            r"ranges from 0 to 16, but pixels must be integers",
        ),
        ({"x_train": np.full((8, 16, 16), 256)}, r"x_train \(int64\) ranges from 256 to 256, .* rescale it"),
        ({"x_train": np.full((8, 16, 16), np.nan)}, r"x_train \(float64\) ranges from nan to nan"),
        (
            {"x_train": np.zeros((8, 16, 16), complex)},
            r"x_train must be integers from 0 to 255 or floats, got complex128",
        ),
        (
            {"x_train": np.ones((8, 16, 16)), "x_test": np.full((4, 16, 16), 255.0)},
            r"different ranges \(x_train is float64 from 1 to 1, x_test is float64 from 255 to 255\); save all",
        ),
        ({"x_train": np.zeros((8, 3, 16, 16), np.uint8)}, r"channels-first.*transpose\(0, 2, 3, 1\)"),
        (
            {"X_train": np.zeros((8, 16, 16), np.uint8)},
            r"has two arrays 'x_train' that differ in case; rename or remove",
        ),
        ({"x_train": np.zeros((8, 16), np.uint8)}, r"x_train must be \(N, H, W\) or"),
        ({"classes": np.array(["a", None], dtype=object)}, r"cannot be read as \.npz .*without object arrays"),
        ({"classes": np.array(["a"]), "y_train": np.zeros(8, int), "y_test": np.zeros(4, int)}, r"a single class, 'a'"),
    ],
)
def test_refused(tmp_path: Path, changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "MAX_CLASSES", 20)
    path = _save(tmp_path, **changes)
    with pytest.raises(DataError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_many_images_have_some_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "_MANY", 10)
    np.savez(tmp_path / "x.npz", x=PIXELS, y=LABELS)
    _open(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", x=PIXELS[:, :7], y=LABELS)
    with pytest.raises(DataError, match="x has 12 images of 7 x 8 pixels; use 10 or fewer, or larger ones"):
        _open(tmp_path / "x.npz")


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04cut"])
def test_damaged_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npz: cannot be read as \.npz"):
        load(tmp_path / "x.npz")
